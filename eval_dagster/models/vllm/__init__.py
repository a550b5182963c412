"""The `vllm` backend: vLLM's offline engine in this process. Only `engine` imports vLLM."""
