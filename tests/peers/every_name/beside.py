PREFIX = "Well: "
