"""Classes with the names and the behaviour of eval-framework 0.9, so that its benchmark and metric files load and compute."""
