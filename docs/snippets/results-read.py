import json
from pathlib import Path

document = json.loads(Path("a.json").read_text())
for series in document["series"]:
    for point in series["points"]:
        print(series["protocol"], point["nbytes"], point["one_way_s"]["median"], point["one_way_s"]["ci95"])
