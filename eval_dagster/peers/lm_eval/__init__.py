"""The tasks, groups and tags of lm-eval: `task: lm_eval:NAME`, or the YAML file of a task of one's own."""
