"""Invented names, places, times and things for the built-in prompts. All text here is CC0-1.0."""

from __future__ import annotations

from random import Random

NAMES = (
    "Ada", "Amir", "Anouk", "Bea", "Carlos", "Chidi", "Dana", "Elif", "Emil", "Farah",
    "Felix", "Gita", "Hugo", "Ines", "Ivan", "Jonas", "Juno", "Kai", "Leila", "Liam",
    "Mara", "Mateo", "Mina", "Nadia", "Noor", "Olga", "Omar", "Petra", "Quinn", "Rosa",
    "Sami", "Tara", "Theo", "Uma", "Vera", "Wim", "Yara", "Yusuf", "Zoe",
)  # fmt: skip
FAMILY_NAMES = (
    "Abara", "Berg", "Costa", "Demir", "Eklund", "Fuchs", "Grant", "Haddad", "Ito", "Jansen",
    "Kovac", "Lund", "Moreau",
)  # fmt: skip
PLACES = (
    "Harbour Café", "the library", "Oak Street 12", "the north gate", "platform 4", "the old mill",
    "Lakeside Park", "the office", "Station Square", "Room 3B", "the sports hall", "Pine Road 7",
)  # fmt: skip
CITIES = (
    "Bergen", "Porto", "Leeds", "Graz", "Ghent", "Malmö", "Split", "Turku", "Zadar", "Lyon",
    "Cork", "Basel",
)  # fmt: skip
FIRMS = (
    "Northwind Travel", "Blue Kettle", "Parcelo", "Fernbank", "City Water", "Maple Dental",
    "GreenGrid Energy", "Tidal Gym", "Papertrail Books", "Orbit Mobile", "Lumen Cinema",
)  # fmt: skip
DAYS = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November",
)  # fmt: skip
FOODS = (
    "soup", "lasagne", "dumplings", "falafel", "pancakes", "curry", "pizza", "salad",
    "noodles", "tacos",
)  # fmt: skip
THINGS = (
    "the projector", "your umbrella", "the spare key", "a blue folder", "the charger",
    "the tent", "your jacket", "the first-aid kit", "two chairs", "the speaker",
)  # fmt: skip
EVENTS = (
    "the budget review", "the school concert", "the team lunch", "the yoga class", "the site visit",
    "the book club", "the birthday party", "the parents' evening", "the interview", "the hike",
)  # fmt: skip
TOPICS = (
    "a storm warning for the coast", "the tram strike", "a new cycle bridge", "rising bread prices",
    "the city marathon", "a rare comet", "the museum reopening", "a record harvest",
)  # fmt: skip


class Slots:
    """Draws fillers from one random stream, so that a seed gives the same prompt everywhere."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def fill(self, template: str) -> str:
        """Replace every {slot} of a template; each occurrence is drawn anew."""
        parts = template.split("{")
        filled = [parts[0]]
        for part in parts[1:]:
            slot, rest = part.split("}", 1)
            filled += [str(getattr(self, slot)()), rest]
        return "".join(filled)

    def people(self, count: int) -> list[str]:
        """Different first names."""
        return self.random.sample(NAMES, count)

    def name(self) -> str:
        """A first name."""
        return self.random.choice(NAMES)

    def full_name(self) -> str:
        """A first and a family name."""
        return f"{self.name()} {self.random.choice(FAMILY_NAMES)}"

    def place(self) -> str:
        """Somewhere to meet."""
        return self.random.choice(PLACES)

    def city(self) -> str:
        """A town."""
        return self.random.choice(CITIES)

    def firm(self) -> str:
        """An invented company."""
        return self.random.choice(FIRMS)

    def day(self) -> str:
        """A weekday."""
        return self.random.choice(DAYS)

    def date(self) -> str:
        """A day of a month."""
        return f"{self.random.choice(MONTHS)} {self.random.randint(1, 28)}"

    def time(self) -> str:
        """A time of day."""
        return f"{self.random.randint(7, 21)}:{self.random.choice(('00', '15', '30', '45'))}"

    def food(self) -> str:
        """Something to eat."""
        return self.random.choice(FOODS)

    def thing(self) -> str:
        """Something to bring."""
        return self.random.choice(THINGS)

    def event(self) -> str:
        """Something to attend."""
        return self.random.choice(EVENTS)

    def topic(self) -> str:
        """A headline."""
        return self.random.choice(TOPICS)

    def number(self) -> int:
        """A small count."""
        return self.random.randint(2, 12)

    def money(self) -> str:
        """An amount."""
        return f"${self.random.randint(5, 240)}"
