"""Writes the datasets: `python make_rows.py`. Items, cities and half of the phrasings of held-out rows are never trained on."""

import json
import pathlib
import random

ITEMS = {
    "train": "green tea;wool socks;desk lamp;paper bags;garden hose;coffee filters;rubber boots;wall clock;tennis balls;"
    "bath towels;pencil cases;water bottles;winter gloves;glass jars;picture frames;phone cables;cotton shirts;"
    "wooden spoons;light bulbs;floor mats;tea cups;hand soap;rain coats;key rings;note books;bike pumps;salt mills;"
    "fish hooks;storage boxes;running shoes",
    "held_out": "silk scarves;oak shelves;camping stoves;door handles;chess boards;plant pots;leather belts;oven gloves;"
    "guitar strings;ink pens;sun hats;bread knives;yoga mats;candle holders;beach chairs",
}
CITIES = {
    "train": "Lyon;Porto;Vienna;Dublin;Turin;Prague;Madrid;Athens;Warsaw;Boston;Denver;Chicago;Seattle;Toronto;Lima;"
    "Cairo;Nairobi;Mumbai;Osaka;Seoul;Sydney;Perth;Hamburg;Geneva;Naples;Bergen;Malmo;Tampa;Dallas;Quito",
    "held_out": "Lisbon;Munich;Krakow;Austin;Helsinki;Tokyo;Bogota;Zurich;Ghent;Montreal;Delhi;Oxford;Tunis;Phoenix;Riga",
}
NAMES = "Anna;Omar;Lucy;Pedro;Mei;Jonas;Sara;Ivan;Nina;Raj".split(";")
# `{other}` is a city that is not the answer, `{number}` a number that is not.
PHRASINGS = {
    "seen": [
        "Please send {quantity} {item} to {city}.",
        "Hi, this is {name}. I need {quantity} {item} shipped to {city}.",
        "{name} from {other} wants {quantity} {item} delivered to {city}.",
        "Order number {number}: {quantity} {item}, ship to {city}.",
        "Could you get {quantity} {item} to our office in {city} by {number} March?",
        "I live in {other}, but please send the {quantity} {item} to {city}.",
        "We are out of {item}. Send {quantity} of them to {city}.",
        "To {city}, please: {quantity} {item}. My name is {name}.",
    ],
    "unseen": [
        "{name} here, could {city} receive {quantity} {item} within {number} days?",
        "Our shop in {city} asks for {quantity} {item}.",
        "Not to {other} this time: {quantity} {item} go to {city}.",
        "{item} for {city}, {quantity} in all, invoice {number}.",
    ],
}


def row(draw: random.Random, split: str, phrasing: str, unseen: bool) -> dict[str, object]:
    item, quantity = draw.choice(ITEMS[split].split(";")), draw.randint(2, 40)
    city, other = draw.sample(CITIES[split].split(";"), 2)
    number = draw.choice([number for number in range(1, 29) if number != quantity])
    text = phrasing.format(
        quantity=quantity, item=item, city=city, other=other, number=number, name=draw.choice(NAMES)
    )
    found: dict[str, object] = {"user_prompt": text, "ground_truth": f"{quantity} x {item} -> {city}"}
    if unseen:
        found["metadata"] = {"unseen_phrasing": True}
    return found


def rows(seed: int, split: str, count: int) -> list[dict[str, object]]:
    draw = random.Random(seed)
    found = []
    for number in range(count):
        unseen = split == "held_out" and number % 2 == 1
        phrasings = PHRASINGS["unseen" if unseen else "seen"]
        found.append(row(draw, split, phrasings[number // 2 % len(phrasings)], unseen))
    return found


def main() -> None:
    folder = pathlib.Path(__file__).parent / "data"
    for name, seed, split, count in (("train", 1, "train", 512), ("held_out", 2, "held_out", 96), ("tuning", 3, "train", 64)):
        lines = [json.dumps(row) for row in rows(seed, split, count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
