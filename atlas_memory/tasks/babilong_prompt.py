"""How BABILong asks a language model that was not trained on it, and how it reads the answer.

The prompts are those of the benchmark, word for word: they are part of it. Differs from it: the
prompt ends in "Answer:", as its examples do, which a model without instruction tuning needs.
"""

from atlas_memory.tasks import babi

POSITIONS = (
    "You need to answer the question based only on the information from the facts.\n"
    "If a person got an item in the first location and travelled to the second location "
    "the item is also in the second location. "
    "If a person dropped an item in the first location and moved to the second location "
    "the item remains in the first location"
)

# instruction, examples, how to answer
PROMPTS = {
    "qa1": (
        "I will give you context with the facts about positions of different persons hidden in "
        "some random text and a question. You need to answer the question based only on the "
        "information from the facts. If a person was in different locations, use the latest "
        "location to answer the question.",
        (
            "Charlie went to the hallway. Judith come back to the kitchen. Charlie travelled to "
            "balcony. Where is Charlie?\nAnswer: The most recent location of Charlie is balcony.",
            "Alan moved to the garage. Charlie went to the beach. Alan went to the shop. Rouse "
            "travelled to balcony. Where is Alan?\nAnswer: The most recent location of Alan is "
            "shop.",
        ),
        "Always return your answer in the following format: The most recent location of "
        "’person’ is ’location’. Do not write anything else after that. ",  # noqa: RUF001
    ),
    "qa2": (
        "I give you context with the facts about locations and actions of different persons "
        f"hidden in some random text and a question.{POSITIONS}.",
        (
            "Charlie went to the kitchen. Charlie got a bottle. Charlie moved to the balcony. "
            "Where is the bottle?\nAnswer: The bottle is in the balcony.",
            "Alan moved to the garage. Alan got a screw driver. Alan moved to the kitchen. Where "
            "is the screw driver?\nAnswer: The screw driver is in the kitchen.",
        ),
        "Always return your answer in the following format: The ’item’ is in ’location’. "  # noqa: RUF001
        "Do not write anything else after that.",
    ),
    "qa3": (
        "I give you context with the facts about locations and actions of different persons "
        f"hidden in some random text and a question. {POSITIONS}",
        (
            "John journeyed to the bedroom.Mary grabbed the apple. Mary went back to the "
            "bathroom. Daniel journeyed to the bedroom. Daniel moved to the garden. Mary "
            "travelled to the kitchen. Where was the apple before the kitchen?\n"
            "Answer: Before the kitchen the apple was in the bathroom.",
            "John went back to the bedroom. John went back to the garden. John went back to the "
            "kitchen. Sandra took the football. Sandra travelled to the garden. Sandra journeyed "
            "to the bedroom. Where was the football before the bedroom?\n"
            "Answer: Before the kitchen the football was in the garden.",
        ),
        "Always return your answer in the following format: Before the $location_1& the $item$ "
        "was in the $location_2$. Do not write anything else after that.",
    ),
    "qa4": (
        "I will give you context with the facts about different people, their location and "
        "actions, hidden in some random text and a question. You need to answer the question "
        "based only on the information from the facts.",
        (
            "The hallway is south of the kitchen. The bedroom is north of the kitchen. What is "
            "the kitchen south of?\nAnswer: bedroom",
            "The garden is west of the bedroom. The bedroom is west of the kitchen. What is west "
            "of the bedroom?\nAnswer: garden",
        ),
        "Your answer should contain only one word - location. Do not write anything else after "
        "that.",
    ),
    "qa5": (
        "I will give you context with the facts about locations and their relations hidden in "
        "some random text and a question. You need to answer the question based only on the "
        "information from the facts.",
        (
            "Mary picked up the apple there. Mary gave the apple to Fred. Mary moved to the "
            "bedroom. Bill took the milk there. Who did Mary give the apple to?\nAnswer: Fred",
            "Jeff took the football there. Jeff passed the football to Fred. Jeff got the milk "
            "there. Bill travelled to the bedroom. Who gave the football?\nAnswer: Jeff",
            "Fred picked up the apple there. Fred handed the apple to Bill. Bill journeyed to the "
            "bedroom. Jeff went back to the garden. What did Fred give to Bill?\nAnswer: apple",
        ),
        "Your answer should contain only one word. Do not write anything else after that. Do not "
        "explain your answer.",
    ),
}
LABELS: dict[str, tuple[str, ...]] = dict.fromkeys(("qa1", "qa2", "qa3", "qa4"), babi.LOCATIONS)
LABELS["qa5"] = (*babi.GIVERS, *babi.OBJECTS)


def around(task: str, question: str) -> tuple[str, str]:
    """What stands before the context, and what stands behind it."""
    instruction, examples, form = PROMPTS[task]
    shown = "\n".join(f"<example>\n{example}\n</example>" for example in examples)
    before = f"{instruction}\n{shown}\n{form}\n<context>\n"
    return before, f"\n</context>\nQuestion: {question}\nAnswer:"


def correct(task: str, question: str, answer: str, said: str) -> bool:
    """Of the task's words, without those of the question, the first sentence has the answer only.

    >>> correct("qa1", "Where is Mary?", "office", " Mary is in the office. Or the garden.")
    True
    """
    sentence = said.lower().split(".")[0].split("<context>")[0].split("<example>")[0]
    labels = {label.lower() for label in LABELS[task]}
    named = {label for label in labels if label in sentence and label not in question.lower()}
    return named == {answer.lower()}
