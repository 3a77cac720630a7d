from viakit.measure import Config, Result, sweep

result = Result(sweep.run(Config(protocols=["unix"], sizes=[8, 64, 512, 4096, 32768, 262144])).document)
result.save("today.json")  # also .csv, .png, .svg, .pdf, .html
print(result.fit()["unix"].n_half)  # Hockney, LogGP, half-bandwidth size, knees
print(result.compare("today.json"))  # no evidence of change
