"""Made-up requests to a bank in the shape of intent data: 77 intents that share their things and their troubles, said in many ways."""

import numpy as np

THINGS = {
    "card": ["card", "debit card", "plastic card", "my new card", "bank card"],
    "virtual card": ["virtual card", "online card", "digital card", "card in the app", "disposable card"],
    "transfer": ["transfer", "bank transfer", "payment to a friend", "money I sent", "wire"],
    "top-up": ["top-up", "top up", "deposit", "money I added", "funds I loaded"],
    "cash": ["cash", "cash withdrawal", "money from the machine", "ATM withdrawal", "notes from the ATM"],
    "PIN": ["PIN", "pin code", "passcode", "four digits", "secret number"],
    "refund": ["refund", "money back", "reimbursement", "returned payment", "chargeback"],
    "account": ["account", "profile", "my login", "membership", "registration"],
    "exchange": ["exchange", "currency exchange", "conversion", "foreign money", "changing euros"],
    "direct debit": ["direct debit", "standing order", "monthly bill", "subscription payment", "recurring payment"],
    "statement": ["statement", "list of payments", "history", "summary of last month", "overview"],
}
TROUBLES = {
    "late": ["is still not here", "hasn't come yet", "is taking ages", "should be here by now", "is it late"],
    "fee": ["why was I charged for", "there is an extra fee on", "cost more than it should", "what do you charge for"],
    "how": ["how do I get", "where can I order", "what are the steps for", "can I set up", "I'd like to have"],
    "refused": ["was declined", "didn't work", "keeps being rejected", "won't go through", "gives me an error"],
    "strange": ["I don't recognise", "I never made this", "somebody else used", "looks like fraud on", "not mine"],
    "cancel": ["I want to cancel", "how can I stop", "please undo", "made a mistake with", "get rid of"],
    "limit": ["is there a limit on", "how much can I", "what is the most for", "how often may I use", "how many times"],
}
BEFORE = [
    "",
    "",
    "hi,",
    "hello",
    "please help:",
    "excuse me,",
    "it's urgent,",
    "since yesterday",
    "I was abroad and",
    "so",
]
AFTER = ["", "", "please", "thanks", "what now", "this is the second time", "could you look into it", "I need it today"]
INTENTS = [f"{thing} {trouble}" for thing in THINGS for trouble in TROUBLES]


def requests(each, seed):
    """Return `each` texts of every intent, and their intents."""
    generator = np.random.default_rng(seed)
    texts, labels = [], []
    for thing, names in THINGS.items():
        for trouble, sayings in TROUBLES.items():
            for _ in range(each):
                said = [generator.choice(some) for some in (BEFORE, sayings, names, AFTER)]
                if generator.random() < 0.5:
                    said[1:3] = said[2:0:-1]
                if generator.random() < 0.3:  # a word of something else
                    said.insert(3, f"with the {generator.choice(list(THINGS))}")
                texts.append(" ".join(filter(None, said)))
                labels.append(f"{thing} {trouble}")
    return texts, labels
