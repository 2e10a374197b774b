"""What the target is asked while it writes its own training text. Written by hand for this project; no data set.

Three kinds of user turn: a template with its slots filled, a few first words that the target continues in its own way,
and a turn that the target writes alone.
"""

from __future__ import annotations

import random

TEMPLATES = """
What is {topic}?
What are {topic} good for?
Explain {topic} in simple terms.
Explain {topic} to a ten year old.
How does {topic} work?
Why is {topic} important?
Tell me about {topic}.
Tell me something surprising about {topic}.
Give me five facts about {topic}.
List three reasons to care about {topic}.
List the steps to get started with {topic}.
What are the main parts of {topic}?
What are the benefits of {topic}?
What are the risks of {topic}?
What are common mistakes people make with {topic}?
What should a beginner know about {topic}?
What is the best way to learn about {topic}?
What is the history of {topic}?
What is the difference between {topic} and {other}?
How are {topic} and {other} related?
Compare {topic} and {other}.
Which is better for a beginner, {topic} or {other}?
Write a short story about {topic}.
Write a story in which {topic} and {other} matter.
Write a poem about {topic}.
Write a haiku about {topic}.
Write a short blog post about {topic}.
Write a paragraph in favor of {topic}.
Write a dialogue between two friends about {topic}.
Write an email to a colleague about {topic}.
Write an email to my teacher about {topic}.
Write a short message to invite a friend to an evening about {topic}.
Write a polite complaint about {topic}.
Write a thank-you note that mentions {topic}.
Write a product description for something related to {topic}.
Write a Python function related to {topic}.
Write a Python class that models {topic}.
Write a short program about {topic}.
How do I explain {topic} to my grandmother?
How do I choose a good book about {topic}?
How can I save money on {topic}?
How can I get better at {topic}?
How long does it take to understand {topic}?
Suggest three questions I could ask about {topic}.
Suggest a weekend activity related to {topic}.
Make a checklist for {topic}.
Make a one week plan for {topic}.
Summarize {topic} in two sentences.
Describe {topic} to someone who has never heard of it.
What would the world be like without {topic}?
What is the future of {topic}?
What do people get wrong about {topic}?
Is {topic} worth the effort?
Give me a quick quiz about {topic}.
Give me a short definition of {topic}.
Can you help me understand {topic}?
I am interested in {topic}. Where should I start?
I have to give a talk about {topic}. Give me an outline.
My child asked me about {topic}. What should I say?
Who are important people in the history of {topic}?
How do I {chore}?
How can I {chore}?
How should I {chore}?
How do I {chore} without special tools?
What is the best way to {chore}?
What is the easiest way to {chore}?
What do I need to {chore}?
I have never done it before: how do I {chore}?
Can you tell me how to {chore}?
Give me step by step instructions to {chore}.
My {person} wants to {chore}. What advice should I give?
Why {wonder}?
Why {wonder}? Keep it short.
Can you explain why {wonder}?
Explain to a child why {wonder}.
How does {device} work?
How does {device} work, and why is it useful?
What happens inside {device}?
Who invented {device}?
What should I do when {device} stops working?
Write a {language} function that {computes}.
Write a {language} function that {computes} and explain it.
Show me a {language} function that {computes}.
Write a {language} program that {computes}.
How do I write a function in {language} that {computes}?
Write a {language} loop that {loops}.
Show me a loop in {language} that {loops}.
Write a shell command that {commands}.
Which command {commands}?
Write a SQL query that {queries}.
Write a short email to {person2} {about}.
Write an email to {person2} {about}.
Write a polite message to {person2} {about}.
Write a friendly message to {person2} {about}.
Write a letter to {person2} {about}.
Tell a short story about {hero} who {plot}.
Write a short story about {hero} who {plot}.
Write the beginning of a story about {hero} who {plot}.
Write a four line poem about {scene}.
Write a short poem about {scene}.
Write a haiku about {scene}.
Describe {scene} in two sentences.
List {number} things to {check}.
List {number} {things}.
Name {number} {things}.
Suggest {number} {things}.
What are {number} {things}?
Give me {number} ideas for {occasion}.
Suggest {number} gifts for {person2}.
Make a packing list for {occasion}.
Make a to-do list for {occasion}.
Help me plan {occasion}.
Who {made}?
Who {made}, and when?
When was it that someone {made}, and who was it?
What is the {most} in {place}?
What is the {most} in {place}, and what is it known for?
What is the capital of {place}?
What should I see in {place}?
What do people eat in {place}?
What language do people speak in {place}?
How many {counted}?
How long does it take to {chore}?
Is it safe to {chore}?
What is the meaning of the word "{word}"?
Use the word "{word}" in three sentences.
Give me a synonym for "{word}" and an example.
What is the opposite of "{word}"?
What is {a} plus {b}?
What is {a} times {b}?
I have {a} {objects} and give away {b}. How many are left?
A ticket costs {a} dollars. How much do {b} tickets cost?
Write a riddle about {scene}.
Write a joke about {hero}.
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


SLOTS = {
    "chore": """
change a bicycle tube|boil eggs|cook rice|make an omelet|poach an egg|peel garlic quickly|chop an onion|sharpen a knife
make pizza dough|bake a potato|freeze strawberries|keep bread fresh|ripen avocados|store potatoes|make vegetable soup
make iced tea|brew good coffee|clean a cast iron pan|clean an oven|descale a kettle|clean a wooden cutting board
remove red wine from a carpet|remove grease from a jacket|remove chewing gum from jeans|remove ink from a shirt
wash a wool sweater|iron a linen shirt|fold a T-shirt|fold a suit|hang curtains|sew a hem|patch a pair of jeans
polish leather shoes|dry wet shoes|clean white sneakers|make a bed|organize a closet|pack a suitcase|wrap a present
tie a tie|tie a bow|tie shoelaces|fix a dripping tap|fix a running toilet|clear a blocked shower drain|bleed a radiator
paint a ceiling|fill a hole in a wall|hang a heavy picture|put up a shelf|assemble a bookcase|oil a squeaky hinge
replace a light switch|reset a circuit breaker|change a tire|jump start a car|check the oil of a car|clean a windshield
park in a small space|drive on ice|save fuel|plant a tree|plant tulips|grow mint indoors|repot a cactus|water orchids
prune roses|mow a lawn|make compost|keep slugs away from lettuce|attract birds to a garden|get rid of ants
keep mosquitoes away|catch a mouse|train a puppy|bathe a dog|brush a cat|feed a hamster|clean a fish tank|teach a parrot
fall asleep faster|wake up earlier|stop snoring|treat a small burn|treat a sunburn|stop a nosebleed|remove a splinter
cure hiccups|lower a fever|relieve a sore throat|relax my neck|improve my posture|start running|do a push-up|learn to swim
float on my back|ride a bike|skip stones|light a campfire|pitch a tent|read a map|use a compass|tie a knot|cross a river
write a thank-you card|write a cover letter|write a shopping list|take notes in class|learn vocabulary|memorize a poem
study for a test|give a short speech|ask for a raise|say no politely|apologize to a friend|make new friends
calm a crying baby|help a child with homework|plan a wedding|plan a birthday party|choose a good melon|choose a pillow
choose running shoes|buy a used bicycle|sell an old phone|rent an apartment|open a bank account|save for a vacation
read a contract|split a bill|calculate a tip|read a graph|round a number|add fractions|solve a puzzle|play checkers
shuffle cards|juggle three balls|whistle with two fingers|draw a face|mix green paint|take a sharp photo
clean a camera lens|free space on a phone|back up photos|choose a strong password|clean a keyboard|print on both sides
connect to a wireless network|restart a frozen computer|rename many files|write a bug report|learn to program
""",
    "wonder": """
is the sky blue|is the sea salty|is grass green|is blood red|is snow white|is the sunset red|is the desert cold at night
do stars twinkle|do we have leap years|do we have time zones|do we have seasons|do birds migrate|do birds sing
do cats purr|do dogs bark|do bees make honey|do bears sleep in winter|do fish live in groups|do zebras have stripes
do onions make us cry|do apples turn brown|do bananas turn brown|does bread rise|does milk turn sour|does popcorn pop
does soap clean|does wood float|does oil float on water|does iron rust|does silver turn black|does metal feel cold
does hot air rise|does wind blow|does it rain|does thunder follow lightning|do clouds float|do volcanoes erupt
do mountains have snow on top|do rivers bend|do waves break at the beach|do we dream|do we yawn|do we sneeze|do we laugh
do we need sleep|do we sweat|do we get goose bumps|do muscles get sore|do teeth fall out|does hair turn gray
do ears pop in an airplane|do planes stay in the air|do boats float|do magnets attract iron|do batteries run out
do light bulbs get warm|do mirrors reverse left and right|do echoes happen|do guitars sound different from pianos
do tires have grooves|do bridges have joints|do manhole covers have a round shape|are planets round|is the moon bright
is Venus hot|is Mars red|is the ocean deep|is ice slippery|is honey sticky|is chili hot|is chocolate bad for dogs
is exercise healthy|is too much sugar unhealthy|is breakfast important|are vaccines useful|are forests important
are some deserts sandy|are carrots orange|are flamingos pink|are prices rising|do people pay taxes|do people vote
do people wear uniforms|do companies advertise|do computers use binary numbers|do programs have bugs
do websites use cookies|do phones need antennas|do passwords need to be long|do clocks have twelve hours
""",
    "device": """
a refrigerator|a toaster|a dishwasher|a washing machine|a vacuum cleaner|an electric kettle|a pressure cooker|a blender
an air conditioner|a heat pump|a smoke detector|a thermostat|a light bulb|a flashlight|a battery|a solar panel
a wind turbine|a car engine|an electric motor|a bicycle gear|a brake|an airbag|a seat belt|a jet engine|a helicopter
a submarine|a hot air balloon|an elevator|an escalator|a crane|a pump|a lock|a zipper|a mechanical clock|a quartz watch
a compass|a barometer|a thermometer|a scale|a telescope|a microscope|a camera|a printer|a scanner|a touch screen
a loudspeaker|a microphone|a radio|a television|a telephone|a fax machine|a satellite|a GPS receiver|a barcode
a credit card|a computer mouse|a hard disk|a processor|a router|a web browser|a search engine|a compiler|a spreadsheet
an X-ray machine|a stethoscope|a pacemaker|a hearing aid|a pair of glasses|a violin|a piano|a trumpet|a pencil|a ballpoint pen
""",
    "language": "Python|Python|Python|JavaScript|JavaScript|Java|C|C++|TypeScript|Ruby|Go",
    "computes": """
adds two numbers|returns the larger of two numbers|returns the smallest number in a list|returns the average of a list
sums the digits of a number|checks whether a number is prime|checks whether a number is even|computes a factorial
returns the n-th Fibonacci number|converts Celsius to Fahrenheit|converts miles to kilometers|converts a number to binary
computes the area of a circle|computes the area of a triangle|computes compound interest|computes the distance of two points
rounds a price to two decimals|returns the absolute value of a number|swaps two variables|computes a power
finds the greatest common divisor of two numbers|checks whether a year is a leap year|counts the words in a sentence
counts how often each letter occurs|counts the lines of a file|checks whether a word is a palindrome|reverses a string
reverses the words of a sentence|capitalizes every word|removes spaces from a string|removes punctuation from a text
replaces a word in a text|checks whether a string contains a digit|checks whether two words are anagrams
validates an email address|splits a string at commas|joins a list of strings|finds the longest word in a list
sorts a list of numbers|sorts a list of names|removes duplicates from a list|merges two sorted lists|merges two dictionaries
flattens a nested list|returns the second largest number|finds the index of an element|filters out negative numbers
squares every number in a list|rotates a list by one|splits a list in half|transposes a matrix|multiplies two matrices
does a binary search|does a bubble sort|implements a stack|implements a queue|builds a linked list|walks a binary tree
reads a file and prints it|writes a list to a file|reads a CSV file|parses JSON|downloads a web page|formats a date
returns the current time|counts the days between two dates|generates a random password|rolls two dice|shuffles a deck of cards
plays rock, paper, scissors|asks the user for a name|prints a multiplication table|prints a triangle of stars|draws a square
""",
    "loops": """
prints the numbers from 1 to 10|prints the odd numbers from 1 to 15|counts down from 5|prints every third number up to 30
sums the numbers from 1 to 100|prints the squares of the first ten numbers|prints each letter of a word
prints each item of a list with its number|prints a list backwards|stops at the first negative number|asks until the answer is yes
prints the powers of two up to 1024|prints the alphabet|skips empty lines|prints the keys of a dictionary|fills a list with zeros
adds up the prices in a list|finds the largest number in a list|prints "hello" five times|prints FizzBuzz
""",
    "commands": """
lists all files in a folder|shows hidden files|counts the lines of a file|copies a folder|renames a file|deletes empty folders
finds all files that end in .log|finds files that changed today|shows the size of a folder|shows free disk space
shows running processes|stops a process|prints the last ten lines of a file|searches for a word in all files
replaces a word in a file|sorts the lines of a file|removes duplicate lines|unpacks a zip file|makes a file executable
shows the current folder|creates a new folder|downloads a file|shows the date|compares two files|makes a backup of a folder
""",
    "queries": """
selects all customers|counts the orders of each customer|finds the most expensive product|sorts employees by salary
returns the average price per category|joins orders with customers|deletes old records|adds a new user|updates a phone number
finds duplicate names|lists products that are out of stock|returns the ten newest articles|sums the sales of each month
""",
    "person": "brother|sister|son|daughter|friend|father|mother|roommate|grandfather|cousin",
    "person2": """
my boss|my colleague|my landlord|my neighbor|my sister|my brother|my grandmother|my uncle|my best friend|my roommate
a customer|a client|the whole team|a former teacher|my doctor|my dentist|the bank|the hotel|the airline|the school
the library|my professor|a new coworker|the customer service|my coach|my mentor|the city council|a job applicant|my parents
""",
    "about": """
to ask for a day off|to ask for a meeting next week|to cancel a meeting|to confirm an appointment|to move an appointment
to say that I am sick today|to say that I will be late|to apologize for a mistake|to apologize for the noise
to say thank you for a present|to say thank you for the help|to say thank you for the nice evening|to ask for advice
to ask for a refund|to ask about a lost parcel|to ask for the price|to ask for more time|to remind them of a deadline
to invite them to a birthday party|to invite them to lunch|to congratulate them on a new job|to congratulate them on a baby
to wish a happy new year|to say goodbye before a move|to ask for help with a move|to ask them to feed my cat
to complain about a broken heater|to complain about a late delivery|to report a problem with my order|to ask for a reference
to introduce myself|to introduce a new product|to share good news|to send the notes of a meeting|to ask how they are
to return a borrowed book|to explain why I missed the call|to explain a delay|to accept an offer|to decline an offer politely
""",
    "hero": """
a cat|a small dog|an old dog|a mouse|a rabbit|a hedgehog|a squirrel|a bear|a young wolf|an owl|a crow|a sparrow|a duck
a frog|a turtle|a snail|a whale|a penguin|an elephant|a lion|a donkey|a horse|a goat|a bee|a spider|a dragon|a giant
a witch|a ghost|a robot|a knight|a princess|a pirate|a king|a baker|a gardener|a fisherman|a sailor|a teacher|a painter
a musician|a clockmaker|a detective|a librarian|a pilot|an astronaut|a farmer|a girl|a boy|two sisters|twin brothers
a grandmother|a little boy|a lonely tree|a paper boat|a snowman|a lighthouse keeper
""",
    "plot": """
finds an old key|finds a hidden door|finds a letter in a bottle|finds a lost ring|finds a map|loses a hat|loses the way home
loses a shoe|learns to fly|learns to swim|learns to read|learns to share|makes a new friend|meets a stranger on a bridge
helps a bird|helps an old man|saves a village|builds a boat|builds a house of leaves|bakes a cake for the queen|plants a seed
travels to the moon|travels to the sea|crosses a desert|climbs a mountain|gets lost in a forest|gets caught in a storm
sleeps through the summer|is afraid of the dark|is afraid of water|wants to be taller|wants to see the stars
cannot find any food|cannot stop laughing|tells the truth|tells a lie|keeps a secret|breaks a promise|wins a race
loses a race|opens a small shop|repairs an old clock|hears a strange noise|wakes up in another city|talks to the wind
""",
    "scene": """
a quiet lake|a morning in spring|a summer evening|autumn rain|the last day of summer|the first day of school|a winter night
a walk in the fog|the sound of the sea|a storm at sea|an empty beach|a garden at night|an old oak tree|a field of sunflowers
a candle in the window|a train at night|a busy street|a market in the morning|a sleeping cat|a bird on a wire|a butterfly
the full moon|a falling star|the north wind|a rainbow after the rain|a frozen pond|a warm kitchen|a cup of tea|fresh bread
my grandfather's clock|an old photograph|a letter from far away|a long road|a bridge over a river|a lighthouse|a small boat
a mountain at dawn|a forest path|the smell of rain|an open book|a child on a swing|coming home
""",
    "number": "three|three|four|five|five|six|seven|ten",
    "check": """
check before renting an apartment|check before a long drive|check before buying a laptop|check before signing a contract
do before a trip|do before going to bed|do on a weekend|do in a power cut|do when it is very hot|do after moving house
bring to a picnic|bring to a job interview|bring to the beach|keep in a desk drawer|keep in a car|keep in a toolbox
avoid before an exam|avoid when cooking pasta|know about mortgages|know before getting a cat|remember when writing an essay
""",
    "things": """
ways to save electricity|ways to save money on food|ways to reduce waste|ways to relax after work|ways to stay awake
ways to learn faster|ways to say hello|ways to cook eggs|ways to use old newspapers|healthy snacks|easy dinners|quick breakfasts
vegetables that grow quickly|plants that need little light|fruits with a lot of vitamin C|foods that are rich in iron
animals that live in the desert|animals that lay eggs|animals that are active at night|birds that cannot fly|large dogs
small dogs|countries in Africa|countries in Europe|cities in Japan|famous mountains|famous bridges|famous painters
famous scientists|famous novels|musical instruments|card games|outdoor games for children|games for a long car ride
team sports|winter sports|hobbies for retired people|hobbies that cost nothing|jobs that need travel|useful tools
kitchen tools|things that float|things made of glass|inventions of the last century|programming languages|data types
good habits|signs of stress|reasons to read books|reasons to get up early|rules for a safe password|rules of good manners
questions for a job interview|questions to ask a new friend|names for a cat|names for a boat|titles for a mystery novel
books for a ten year old|movies for a family evening|songs for a party|colors that go well together|words that rhyme with day
""",
    "occasion": """
a birthday party|a picnic|a weekend in the mountains|a week at the sea|a day in the city|a camping trip|a school trip
a family dinner|a rainy weekend|a first date|a wedding|a housewarming party|a farewell party|a move to another city
a long flight|a road trip|a job interview|a science project|a garden party|New Year's Eve|a winter hike|a quiet Sunday
""",
    "made": """
wrote Hamlet|wrote Don Quixote|wrote War and Peace|wrote Pride and Prejudice|wrote Moby Dick|wrote The Odyssey
wrote Frankenstein|wrote Alice in Wonderland|wrote Robinson Crusoe|wrote The Little Prince|painted The Starry Night
painted The Scream|painted Guernica|painted the Sistine Chapel|made the statue of David|composed the Ninth Symphony
composed The Four Seasons|composed The Magic Flute|invented the telephone|invented the printing press|invented dynamite
invented the steam engine|invented the World Wide Web|invented the radio|discovered penicillin|discovered gravity
discovered radium|discovered America|discovered the structure of DNA|discovered the planet Uranus|built the Eiffel Tower
built the Great Wall|first walked on the moon|first climbed Mount Everest|first flew across the Atlantic
first reached the South Pole|was the first president of the United States|was the first emperor of Rome|founded Microsoft
created Mickey Mouse|created Sherlock Holmes|developed the theory of relativity|developed the theory of evolution
""",
    "most": """
highest mountain|largest city|largest lake|longest river|oldest university|most famous building|most popular sport
most common language|largest desert|most famous museum|tallest building|busiest airport|most visited place|national dish
""",
    "place": """
Germany|France|Italy|Spain|Portugal|Greece|Norway|Sweden|Finland|Poland|Turkey|Russia|Ukraine|Egypt|Morocco|Kenya|Nigeria
South Africa|Ethiopia|Ghana|Mexico|Cuba|Peru|Chile|Argentina|Colombia|Canada|Alaska|Texas|California|Australia|New Zealand
Japan|China|India|Nepal|Thailand|Vietnam|Indonesia|the Philippines|Iran|Iraq|Israel|Saudi Arabia|Iceland|Ireland|Scotland
Switzerland|Austria|Belgium|the Netherlands|Denmark|Hungary|Romania|Europe|Asia|Africa|North America
""",
    "counted": """
planets are in the solar system|continents are there|oceans are there|countries are in Africa|states are in the United States
days are in a year|weeks are in a year|hours are in a week|minutes are in a day|seconds are in an hour|legs does a spider have
legs does an insect have|eyes does a bee have|hearts does an octopus have|teeth does a shark have|teeth does a child have
muscles does the human body have|liters of blood does a person have|calories are in an apple|cups are in a liter
grams are in a pound|centimeters are in an inch|feet are in a mile|bits are in a byte|strings does a guitar have
keys does a piano have|players are on a soccer team|squares are on a chess board|cards are in a deck|letters are in the alphabet
moons does Jupiter have|people live in India|languages are spoken in the world|bottles of water should I drink a day
""",
    "word": """
curious|patient|brave|gentle|honest|stubborn|fragile|ancient|modern|rapid|enormous|tiny|silent|cheerful|gloomy|generous
clever|lazy|polite|rude|narrow|steep|shallow|bitter|sour|crisp|smooth|rough|bright|dim|scarce|abundant|temporary|permanent
to borrow|to wander|to hesitate|to whisper|to gather|to vanish|to improve|to argue|to forgive|to celebrate|journey|harvest
shelter|treasure|shadow|courage|freedom|wisdom|patience|luck|harbor|horizon|bargain|rumor|echo|habit|effort|promise
""",
    "a": "|".join(str(n) for n in range(11, 61)),
    "b": "|".join(str(n) for n in range(2, 11)),
    "objects": "apples|books|coins|stamps|marbles|pencils|cookies|balloons|tickets|eggs",
}


def _split(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part for part in text.replace("\n", separator).split(separator) if part)


TEMPLATE_LIST = _split(TEMPLATES, "\n")
TOPIC_LIST = _split(TOPICS, "|")
STARTER_LIST = _split(STARTERS, "|")
SLOT_LISTS = {name: _split(choices, "|") for name, choices in SLOTS.items()}


def sample_user_turn(rng: random.Random) -> tuple[str, bool]:
    """(text, complete): a whole user turn, or the first words (possibly none) of one that the target completes."""
    kind = rng.random()
    if kind < 0.75:
        topic, other = rng.sample(TOPIC_LIST, 2)
        fillings = {name: rng.choice(choices) for name, choices in SLOT_LISTS.items()}
        return rng.choice(TEMPLATE_LIST).format(topic=topic, other=other, **fillings), True
    if kind < 0.95:
        return rng.choice(STARTER_LIST), False
    return "", False
