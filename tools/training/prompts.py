"""What the target is asked while it writes its own training text. Written by hand for this project; no data set.

Three kinds of user turn: a template filled with topics, a few first words that the target continues in its own way, and
a turn that the target writes alone.
"""

from __future__ import annotations

import random

TEMPLATES = """
What is {t}?
What are {t} good for?
Explain {t} in simple terms.
Explain {t} to a ten year old.
How does {t} work?
Why is {t} important?
Tell me about {t}.
Tell me something surprising about {t}.
Give me five facts about {t}.
List three reasons to care about {t}.
List the steps to get started with {t}.
What are the main parts of {t}?
What are the benefits of {t}?
What are the risks of {t}?
What are common mistakes people make with {t}?
What should a beginner know about {t}?
What is the best way to learn about {t}?
What is the history of {t}?
What is the difference between {t} and {u}?
How are {t} and {u} related?
Compare {t} and {u}.
Which is better for a beginner, {t} or {u}?
Write a short story about {t}.
Write a story in which {t} and {u} matter.
Write a poem about {t}.
Write a haiku about {t}.
Write a short blog post about {t}.
Write a paragraph in favor of {t}.
Write a dialogue between two friends about {t}.
Write an email to a colleague about {t}.
Write an email to my teacher about {t}.
Write a short message to invite a friend to an evening about {t}.
Write a polite complaint about {t}.
Write a thank-you note that mentions {t}.
Write a product description for something related to {t}.
Write a Python function related to {t}.
Write a Python class that models {t}.
Write a short program about {t}.
How do I explain {t} to my grandmother?
How do I choose a good book about {t}?
How can I save money on {t}?
How can I get better at {t}?
How long does it take to understand {t}?
Suggest three questions I could ask about {t}.
Suggest a weekend activity related to {t}.
Make a checklist for {t}.
Make a one week plan for {t}.
Summarize {t} in two sentences.
Describe {t} to someone who has never heard of it.
What would the world be like without {t}?
What is the future of {t}?
What do people get wrong about {t}?
Is {t} worth the effort?
Give me a quick quiz about {t}.
Give me a short definition of {t}.
Can you help me understand {t}?
I am interested in {t}. Where should I start?
I have to give a talk about {t}. Give me an outline.
My child asked me about {t}. What should I say?
Who are important people in the history of {t}?
"""

TOPICS = """
photosynthesis|the water cycle|volcanoes|black holes|the solar system|gravity|electric cars|solar panels|wind power
climate change|recycling|composting|growing tomatoes|bees|whales|dogs|cats|horses|dinosaurs|rain forests|coral reefs
deserts|glaciers|earthquakes|the moon landing|space telescopes|rockets|airplanes|bicycles|trains|bridges|skyscrapers
the Roman Empire|ancient Egypt|the Silk Road|the Renaissance|the Industrial Revolution|the printing press|democracy
taxes|inflation|supply and demand|saving money|budgeting|starting a small business|marketing|remote work|time management
public speaking|job interviews|writing a resume|teamwork|leadership|learning a language|the guitar|the piano|jazz
classical music|painting|photography|poetry|science fiction|mystery novels|fairy tales|mythology|chess|board games
football|basketball|swimming|running|yoga|meditation|sleep|healthy eating|vitamins|vaccines|the human heart|the brain
DNA|evolution|bacteria|antibiotics|stress|friendship|family traditions|raising children|libraries|museums|travel in Japan
hiking|camping|fishing|cooking pasta|baking bread|making soup|tea|chocolate|cheese|restaurants|fashion|architecture
carpentry|robotics|artificial intelligence|machine learning|neural networks|Python lists|Python dictionaries|loops
sorting algorithms|recursion|databases|web pages|operating systems|encryption|passwords|computer networks|the internet
mobile phones|social media|privacy|journalism|statistics|probability|fractions|percentages|algebra|geometry|calculus
prime numbers|chemistry|the periodic table|acids and bases|magnets|electricity|light|sound|weather forecasts|rivers
islands|oceans|farming|forests|birds|insects|elections|human rights|volunteering|philosophy|ethics|happiness|creativity
memory|dreams|holidays|birthdays|winter|summer|rainbows|thunderstorms|fog|clouds|the seasons|day and night|the moon
comets|Mars|Jupiter|satellites|mountains|caves|waterfalls|beaches|swamps|rice|potatoes|apples|bananas|oranges|onions
garlic|salt|sugar|honey|butter|eggs|milk|yogurt|olive oil|spices|salads|sandwiches|pizza|pancakes|cookies|birthday cakes
breakfast|lunch at work|a picnic|house plants|herbs|roses|trees|mushrooms|grass|a vegetable garden|spiders|butterflies
ants|snakes|turtles|frogs|elephants|lions|penguins|owls|sharks|dolphins|rabbits|squirrels|wolves|goldfish|a new puppy
teeth|bones|muscles|the skin|the eyes|the ears|breathing|digestion|blood|the common cold|headaches|allergies|sunscreen
washing hands|stretching|back pain|walking|a morning routine|a bedtime routine|a quiet room|a small apartment|a kitchen
a bathroom|cleaning windows|washing clothes|ironing a shirt|sewing on a button|painting a wall|fixing a flat tire
changing a light bulb|a leaking faucet|a squeaky door|tools|furniture|a bookshelf|candles|mirrors|clocks|umbrellas|shoes
glasses|bags|coins|bank accounts|credit cards|insurance|rent|moving to a new city|neighbors|a job offer|a day off
a meeting at work|a late delivery|a broken laptop|a lost key|a missed train|a school trip|homework|exams|reading
handwriting|spelling|grammar|essays|speeches|letters|newspapers|radio|television|movies|cartoons|theater|dancing|singing
drums|the violin|drawing|sculpture|pottery|knitting|origami|puzzles|card games|riddles|magic tricks|tennis|skiing
skating|climbing|sailing|surfing|the Olympics|a city park|traffic|buses|subways|elevators|airports|maps|compasses
lighthouses|castles|pyramids|temples|markets|farms|factories|hospitals|schools|universities|post offices|police officers
fire fighters|nurses|teachers|engineers|farmers|bakers|pilots|astronauts|explorers|pirates|knights|kings and queens
inventors|Albert Einstein|Isaac Newton|Leonardo da Vinci|William Shakespeare|Mozart|Cleopatra|Julius Caesar|Abraham Lincoln
Paris|London|New York|Rome|Egypt|Brazil|India|China|Canada|Australia|Antarctica|the Amazon|the Sahara|the Alps|the Pacific
HTML|CSS|JavaScript|SQL queries|regular expressions|binary search|linked lists|stacks and queues|hash tables|graphs
unit tests|version control|debugging|functions in Python|strings in Python|reading a file in Python|a to-do list program
a calculator program|a guessing game|dates and times|random numbers|spreadsheets|email|video calls|printers|keyboards
batteries|engines|refrigerators|washing machines|vacuum cleaners|cameras|microphones|3D printing|drones|smart watches
"""

STARTERS = """
Write a|Write a short story about|Write a poem about|Write a Python function that|Write a function that|Write an email to
Write a letter to|Write a message|Write a program|Write a sentence|Write a list of|Write three|Write code|Write a SQL query
Explain|Explain how|Explain why|Explain the difference between|What is|What are|What are the|What does|What causes
What should I|What happens when|What would happen if|What is the best way to|What is the difference between|What kind of
How do I|How does|How can I|How should I|How many|How long|How much|How far|How old|How to|Why do|Why is|Why does|Why are
Who|Who was|Who invented|Who wrote|When did|When was|Where is|Where do|Which|Which country|Is it|Is there|Are there|Can you
Can you explain|Can I|Could you|Do|Does|Should I|Would|Give me|Give me a list of|Give me an example of|Give me tips
List|List five|List the|Name|Name three|Describe|Describe how|Summarize|Tell me|Tell me about|Tell a story about|Create a
Design|Suggest|Suggest a|Translate|Compare|Plan a|Recommend|Make a|Make a list|Teach me|Convert|Find|Fix|Calculate|Solve
If|If I have|A|In|I|I want to|I need|I need help with|I am|I have|I would like|My|My friend|My dog|Help me|Please
Imagine|Imagine you are|Rewrite|Identify|Define|Discuss|Show me|Show me how to|Think of|Choose|Draft|Invent|Sort|Count
"""


def _split(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part for part in text.replace("\n", separator).split(separator) if part)


TEMPLATE_LIST = _split(TEMPLATES, "\n")
TOPIC_LIST = _split(TOPICS, "|")
STARTER_LIST = _split(STARTERS, "|")


def sample_user_turn(rng: random.Random) -> tuple[str, bool]:
    """(text, complete): a whole user turn, or the first words (possibly none) of one that the target completes."""
    kind = rng.random()
    if kind < 0.55:
        topic, other = rng.sample(TOPIC_LIST, 2)
        return rng.choice(TEMPLATE_LIST).format(t=topic, u=other), True
    if kind < 0.92:
        return rng.choice(STARTER_LIST), False
    return "", False
