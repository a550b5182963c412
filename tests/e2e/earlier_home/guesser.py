"""A model whose answers depend on the prompt alone; some are right."""


def answer(request):
    if request.choices:
        return [-float(len(choice)) for choice in request.choices]
    return f" {len(request.prompt) % 17}\n" if "+" in request.prompt else " Paris."
