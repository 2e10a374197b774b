"""The prompts the demo decodes and acceptance is measured on. The embedded drafter never trained on any of them.

They were fixed before acceptance was first measured; changing one changes every published number.
"""

PROMPTS: tuple[str, ...] = (
    # explain
    "How does a microwave oven heat food?",
    "Why do leaves turn red and yellow before they fall?",
    "What makes the tides rise and fall twice a day?",
    "Why does ice float on water?",
    # lists
    "List four things to check before buying a used car.",
    "Which five items belong in a first aid kit?",
    "Name three ways to use less water at home.",
    "Suggest four quiet indoor games for a rainy afternoon.",
    # short code
    "Write a Python function that counts the vowels in a string.",
    "Write a Python loop that prints the even numbers from 2 to 20.",
    "Show me a JavaScript function that reverses an array.",
    "Write a shell command that finds all text files larger than one megabyte.",
    # how-to
    "How do I remove a coffee stain from a white shirt?",
    "How should I store fresh basil so that it keeps for a week?",
    "What is the right way to fold a fitted sheet?",
    "How can I unclog a kitchen sink without chemicals?",
    # facts
    "Who painted the Mona Lisa, and where can people see it today?",
    "How many bones does an adult human have?",
    "What is the longest river in South America?",
    # small stories
    "Tell a short story about a fox who finds a lost mitten.",
    "Write a four line poem about the first snow of the year.",
    # e-mail
    "Write a short email that thanks a neighbor for watering my plants.",
    "Write an email to my teacher explaining that I will miss class on Friday.",
    "Write a polite message to postpone a dinner with friends.",
)
