from viakit.measure import Config, result, sweep

config = Config(protocols=["unix", "tcp"], sizes=[8, 4096], seconds=2)
outcome = sweep.run(config, on_point=lambda series, point: print(series["protocol"], point["nbytes"]))
result.save(outcome.document, "sockets.json")
