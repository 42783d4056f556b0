REGISTRY = {}


def register(name):
    def put(cls):
        REGISTRY[name] = cls
        return cls
    return put


def build(name, options):
    return REGISTRY[name](options)
