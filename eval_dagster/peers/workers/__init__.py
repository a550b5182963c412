"""Scripts that run in environments of other packages. They import the standard library and the package of their environment alone."""
