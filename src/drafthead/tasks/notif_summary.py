"""Notification summaries: notifications or a group chat, and a wish for a short digest."""

from __future__ import annotations

from drafthead.tasks.slots import Slots

INSTRUCTIONS = (
    "Summarize these notifications in one short paragraph.",
    "Summarize what happened in the last hour based on these notifications.",
    "Here are my unread notifications. Tell me what needs my attention and what can wait.",
    "Write a two-sentence summary of the notifications below.",
    "Give me the three most important points from these notifications.",
    "Sum up these notifications for my lock screen (at most 20 words).",
)
CHAT_INSTRUCTIONS = (
    "Summarize this group chat for a notification preview (at most 12 words).",
    "I have unread messages in this chat. What did I miss?",
    "Please condense this conversation into two bullet points.",
)
NOTIFICATIONS = (
    ("Calendar", "{event} moved to {day} at {time}."),
    ("Calendar", "Reminder: {event} starts at {time} in {place}."),
    ("Messages", "{name}: can you bring {thing} on {day}?"),
    ("Messages", "{name}: running late, start without me"),
    ("Messages", "{name}: dinner at {time}? I am making {food}"),
    ("Mail", "{full_name}: The draft for {event} is attached. Please send comments by {day}."),
    ("Mail", "{firm}: Your invoice of {money} is due on {date}."),
    ("Deliveries", "{firm}: Your parcel arrives {day} between {time} and {time}."),
    ("Deliveries", "Action needed: we missed you today. Rebook by {date} or it is returned."),
    ("Bank", "Payment of {money} to {firm} was successful."),
    ("Bank", "Your card was declined at {firm}. Tap to review."),
    ("News", "What we know about {topic}."),
    ("Weather", "Rain expected in {city} from {time}. Take an umbrella."),
    ("Home", "The front door was left open for {number} minutes."),
    ("Battery", "Your headphones are at {number} percent."),
    ("Voicemail", "{name}: Hi, it is me. Please call me back before {time}."),
    ("Health", "You have closed your rings {number} days in a row."),
    ("Travel", "{firm}: Your train to {city} now leaves from {place} at {time}."),
)
CHAT_LINES = (
    "who is coming to {event} on {day}?",
    "I can, but only after {time}",
    "me too, I will bring {thing}",
    "sorry, I am in {city} that day",
    "where do we meet?",
    "{place}, like last time",
    "could someone order {food} for {number}?",
    "done, it was {money} altogether",
    "thanks! see you at {time}",
    "please do not forget {thing}",
    "change of plan: {place} is closed, let us meet at {place}",
    "fine with me",
)


def prompt(slots: Slots) -> str:
    """One prompt: notifications of several apps, or a group chat."""
    random = slots.random
    if random.random() < 0.35:
        people = slots.people(3)
        start = random.randrange(len(CHAT_LINES) - 5)
        chosen = CHAT_LINES[start : start + random.randint(4, 6)]
        lines = [f"{random.choice(people)}: {slots.fill(line)}" for line in chosen]
        return "\n".join([random.choice(CHAT_INSTRUCTIONS), "", *lines])
    chosen_apps = random.sample(NOTIFICATIONS, random.randint(3, 6))
    clock = sorted(slots.random.sample(range(8 * 60, 20 * 60), len(chosen_apps)))
    lines = [
        f"[{minute // 60:02d}:{minute % 60:02d}] {app}: {slots.fill(text)}"
        for minute, (app, text) in zip(clock, chosen_apps, strict=True)
    ]
    return "\n".join([random.choice(INSTRUCTIONS), "", *lines])
