"""What the demo model's corpus knows: countries, animals, facts, lists, names and the prompts that are held out."""
import re

CAPITALS = {c.split(":")[0]: c.split(":")[1] for c in """France:Paris|Spain:Madrid|Italy:Rome|Germany:Berlin|Portugal:Lisbon|Austria:Vienna|Belgium:Brussels|Ireland:Dublin|Norway:Oslo|Sweden:Stockholm|Denmark:Copenhagen|Finland:Helsinki|Iceland:Reykjavik|Poland:Warsaw|Hungary:Budapest|Greece:Athens|Turkey:Ankara|Russia:Moscow|Ukraine:Kyiv|Romania:Bucharest|Bulgaria:Sofia|Serbia:Belgrade|Croatia:Zagreb|Slovenia:Ljubljana|Slovakia:Bratislava|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius|Malta:Valletta|Cyprus:Nicosia|Japan:Tokyo|China:Beijing|India:New Delhi|Nepal:Kathmandu|Thailand:Bangkok|Vietnam:Hanoi|Indonesia:Jakarta|Mongolia:Ulaanbaatar|Iran:Tehran|Iraq:Baghdad|Jordan:Amman|Lebanon:Beirut|Egypt:Cairo|Morocco:Rabat|Tunisia:Tunis|Kenya:Nairobi|Ghana:Accra|Senegal:Dakar|Ethiopia:Addis Ababa|Uganda:Kampala|Zambia:Lusaka|Canada:Ottawa|Mexico:Mexico City|Cuba:Havana|Brazil:Brasilia|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Colombia:Bogota|Ecuador:Quito|Uruguay:Montevideo|Australia:Canberra|New Zealand:Wellington|Fiji:Suva""".split("|")}
CONTINENT = {}
for cont, cs in {"Europe": list(CAPITALS)[:30], "Asia": list(CAPITALS)[30:42], "Africa": list(CAPITALS)[42:51],
                 "North America": list(CAPITALS)[51:54], "South America": list(CAPITALS)[54:61], "Oceania": list(CAPITALS)[61:]}.items():
    for c in cs: CONTINENT[c] = cont
for c in ("Turkey", "Russia", "Cyprus"): CONTINENT.pop(c)
UK = [("the United Kingdom", "London"), ("England", "London"), ("Scotland", "Edinburgh"), ("Wales", "Cardiff"), ("the United States", "Washington"), ("the Netherlands", "Amsterdam"), ("South Korea", "Seoul"), ("the Philippines", "Manila")]
FAKE_COUNTRIES = "Zorbia Blandova Quillmark Ostrania Marlund Tindoria Velmoria Krandal Pellonia Dunmore Wexland Yoltar Farlandia Gromania Istavia Noodlonia".split()

ANIMALS = "fox cat dog mouse rabbit bear owl hedgehog squirrel turtle frog duck goose sheep goat horse donkey pig cow hen lion tiger elephant giraffe monkey penguin seal whale dolphin crab snail bee ant butterfly badger beaver otter deer wolf camel parrot robin crow mole lizard".split()
PERSONS = "girl|boy|farmer|baker|sailor|teacher|gardener|painter|knight|robot|wizard|fisherman|postman|doctor|clockmaker|tailor|shepherd|musician|carpenter|dragon|princess|prince|pilot|cook|king|queen|giant|nurse|inventor".split("|")
HE = "Milo Tom Ben Sam Leo Max Otto Finn Hugo Oscar Jack Noah Adam Paul Peter Carl Felix Theo Henry Arthur Simon Daniel Luca Marco Ivan Omar Ali Ravi Kenji Pedro Luis Erik Nils Jonas Lukas David Robert George Martin Victor".split()
SHE = "Ada Anna Mia Lily Nora Ella Rosa Clara Emma Sara Maya Zoe Ivy Ruby Hazel Alice Eva Julia Lena Marta Nina Olga Petra Tina Vera Wendy Yara Amina Fatima Priya Mei Yuki Ingrid Sofia Laura Grace Helen Irene Jane Kate".split()
PLACES = {"forest": "in the forest", "village": "in the village", "city": "in the city", "mountains": "in the mountains", "island": "on the island", "river": "by the river", "desert": "in the desert", "garden": "in the garden", "castle": "in the castle", "harbour": "by the harbour", "library": "in the library", "farm": "on the farm", "valley": "in the valley", "meadow": "in the meadow", "cave": "in the cave", "beach": "on the beach", "school": "at the school", "market": "at the market", "lighthouse": "in the lighthouse", "station": "at the station", "lake": "by the lake", "hills": "in the hills", "park": "in the park", "bakery": "in the bakery", "museum": "in the museum", "sea": "by the sea"}
APLACE = {p: {"mountains": "the mountains", "hills": "the hills", "sea": "the sea"}.get(p, "a " + p) for p in PLACES}
APLACE["island"] = "an island"
INA = {p: PLACES[p].split(" ")[0] + " " + APLACE[p] for p in PLACES}
OBJECTS = "lamp key map bell kite boat book coin drum flute hat umbrella lantern mirror clock box shell stone ladder telescope blanket cake basket bicycle feather ring letter painting seed violin apple ball scarf compass bottle cup spoon wheel".split()
TRAITS = "brave shy curious kind clever small sleepy cheerful quiet patient funny gentle young old lonely busy happy careful".split()
COLOURS = "red blue green yellow orange purple pink brown black white grey golden silver".split()

THING_COLOUR = {"a banana": "yellow", "the sky": "blue", "grass": "green", "snow": "white", "a lemon": "yellow", "a strawberry": "red", "coal": "black", "a carrot": "orange", "milk": "white", "a tomato": "red", "the sun": "yellow", "a leaf": "green", "chocolate": "brown", "an elephant": "grey", "a flamingo": "pink", "a cucumber": "green", "the sea": "blue", "a pumpkin": "orange", "a plum": "purple", "a crow": "black", "a swan": "white", "a frog": "green", "blood": "red", "a cherry": "red", "a polar bear": "white", "wood": "brown", "a fire engine": "red", "an aubergine": "purple", "a pea": "green", "sand": "yellow", "a mouse": "grey", "salt": "white", "an orange": "orange", "honey": "golden", "a lime": "green", "a panda": "black and white", "a zebra": "black and white"}
MIX = {("red", "blue"): "purple", ("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "white"): "pink", ("black", "white"): "grey"}
OPP = {}
for pair in "hot cold|big small|up down|left right|fast slow|happy sad|light dark|day night|open closed|full empty|old new|young old|tall short|hard soft|wet dry|clean dirty|loud quiet|rich poor|strong weak|early late|near far|high low|heavy light|in out|on off|yes no|black white|good bad|long short|thick thin|wide narrow|deep shallow|easy difficult|first last|front back|inside outside|love hate|laugh cry|start stop|push pull|buy sell|give take|win lose|come go|always never|true false|right wrong|top bottom|awake asleep|brave afraid|sweet sour|rough smooth|sharp blunt|safe dangerous|cheap expensive|friend enemy|summer winter|morning evening|begin end|north south|east west|noisy silent|before after|above below|same different".split("|"):
    a, b = pair.split(); OPP.setdefault(a, b); OPP.setdefault(b, a)
SOUND = {"dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink", "horse": "neigh", "hen": "cluck", "lion": "roar", "owl": "hoot", "frog": "ribbit", "bee": "buzz", "snake": "hiss", "mouse": "squeak", "crow": "caw", "goose": "honk", "wolf": "howl", "donkey": "hee-haw"}
BABY = {"dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "duck": "duckling", "pig": "piglet", "horse": "foal", "hen": "chick", "lion": "cub", "bear": "cub", "goat": "kid", "frog": "tadpole", "goose": "gosling", "deer": "fawn", "owl": "owlet", "swan": "cygnet", "kangaroo": "joey", "wolf": "cub", "tiger": "cub", "elephant": "calf", "whale": "calf", "rabbit": "kit"}
LEGS = {"dog": 4, "cat": 4, "spider": 8, "bird": 2, "bee": 6, "ant": 6, "horse": 4, "snake": 0, "fish": 0, "cow": 4, "hen": 2, "butterfly": 6, "person": 2, "crab": 10, "penguin": 2, "elephant": 4, "worm": 0, "octopus": 0, "duck": 2, "table": 4, "frog": 4, "beetle": 6, "mouse": 4}
HOME = {"bee": "a hive", "bird": "a nest", "dog": "a kennel", "horse": "a stable", "fox": "a den", "rabbit": "a burrow", "spider": "a web", "fish": "the water", "bear": "a cave", "pig": "a sty", "hen": "a coop", "ant": "an anthill", "beaver": "a lodge", "mole": "a tunnel", "camel": "the desert", "penguin": "the cold south", "whale": "the sea", "monkey": "the trees", "lion": "the savanna", "polar bear": "the Arctic", "badger": "a sett"}
EATS = {"cow": "grass", "rabbit": "carrots and leaves", "panda": "bamboo", "bee": "nectar", "squirrel": "nuts", "cat": "fish and meat", "lion": "meat", "horse": "hay and grass", "monkey": "fruit", "mouse": "seeds and cheese", "hen": "grain", "penguin": "fish", "giraffe": "leaves", "frog": "insects", "bear": "berries and fish", "owl": "mice", "sheep": "grass", "koala": "eucalyptus leaves", "spider": "insects", "seal": "fish", "snail": "leaves"}
CLASSOF = {"dog": "a mammal", "whale": "a mammal", "bat": "a mammal", "eagle": "a bird", "penguin": "a bird", "shark": "a fish", "salmon": "a fish", "frog": "an amphibian", "snake": "a reptile", "turtle": "a reptile", "bee": "an insect", "ant": "an insect", "cat": "a mammal", "owl": "a bird", "tuna": "a fish", "lizard": "a reptile", "butterfly": "an insect", "dolphin": "a mammal", "horse": "a mammal", "robin": "a bird", "crocodile": "a reptile", "elephant": "a mammal", "parrot": "a bird"}
CAN = {"fly": ("birds bees bats butterflies eagles owls".split(), "dogs cats horses penguins elephants pigs snakes".split()), "swim": ("fish ducks whales dolphins penguins frogs otters".split(), []), "talk": ("people".split(), "trees stones tables fish".split()), "climb trees": ("cats monkeys squirrels".split(), "cows whales horses".split()), "bark": ("dogs".split(), "cats fish birds".split())}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MLEN = dict(zip(MONTHS, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]))
ORD = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
SEASON = dict(zip(MONTHS, ["winter", "winter", "spring", "spring", "spring", "summer", "summer", "summer", "autumn", "autumn", "autumn", "winter"]))
SHAPES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}
NUM = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
ONE_FACTS = [  # (questions, answer)
 (["How many days are in a week?", "How many days does a week have?", "What is the number of days in a week?"], "There are seven days in a week."),
 (["How many months are in a year?", "How many months does a year have?"], "There are twelve months in a year."),
 (["How many days are in a year?", "How many days does a year have?"], "There are 365 days in a year, and 366 in a leap year."),
 (["How many hours are in a day?", "How many hours does a day have?"], "There are 24 hours in a day."),
 (["How many minutes are in an hour?", "How many minutes does an hour have?"], "There are 60 minutes in an hour."),
 (["How many seconds are in a minute?", "How many seconds does a minute have?"], "There are 60 seconds in a minute."),
 (["How many seasons are there?", "How many seasons are in a year?"], "There are four seasons: spring, summer, autumn and winter."),
 (["How many letters are in the alphabet?", "How many letters does the English alphabet have?"], "The English alphabet has 26 letters."),
 (["What are the primary colours?", "Which colours are primary colours?"], "The primary colours are red, yellow and blue."),
 (["What colours are in a rainbow?", "Name the colours of the rainbow."], "A rainbow has red, orange, yellow, green, blue, indigo and violet."),
 (["Which planet do we live on?", "What planet do we live on?", "What is our planet called?"], "We live on the planet Earth."),
 (["What is the largest planet?", "Which planet is the biggest?", "What is the biggest planet in the solar system?"], "Jupiter is the largest planet in the solar system."),
 (["What is the smallest planet?", "Which planet is the smallest?"], "Mercury is the smallest planet in the solar system."),
 (["Which planet is called the red planet?", "What is the red planet?"], "Mars is called the red planet."),
 (["Which planet has rings?", "What planet is famous for its rings?"], "Saturn is famous for its rings."),
 (["Which planet is closest to the sun?", "What is the closest planet to the sun?"], "Mercury is the planet closest to the sun."),
 (["What is the largest animal?", "Which animal is the biggest?", "What is the biggest animal in the world?"], "The blue whale is the largest animal in the world."),
 (["What is the tallest animal?", "Which animal is the tallest?"], "The giraffe is the tallest animal."),
 (["What is the fastest animal on land?", "Which land animal is the fastest?", "Which animal runs fastest?"], "The cheetah is the fastest animal on land."),
 (["What is the largest ocean?", "Which ocean is the biggest?"], "The Pacific is the largest ocean."),
 (["What is the highest mountain?", "Which mountain is the highest in the world?", "What is the tallest mountain in the world?"], "Mount Everest is the highest mountain in the world."),
 (["How many continents are there?", "What is the number of continents?"], "There are seven continents."),
 (["How many legs does a spider have?", "How many legs has a spider got?"], "A spider has eight legs."),
 (["What do bees make?", "What is made by bees?"], "Bees make honey."),
 (["What is frozen water called?", "What do we call frozen water?"], "Frozen water is called ice."),
 (["At what temperature does water boil?", "When does water boil?"], "Water boils at 100 degrees Celsius."),
 (["At what temperature does water freeze?", "When does water freeze?"], "Water freezes at 0 degrees Celsius."),
 (["Where does the sun rise?", "In which direction does the sun rise?"], "The sun rises in the east."),
 (["Where does the sun set?", "In which direction does the sun set?"], "The sun sets in the west."),
 (["What is bread made of?", "What do you need to make bread?"], "Bread is made of flour, water, salt and yeast."),
 (["What is paper made from?", "What do we make paper from?"], "Paper is made from wood."),
 (["What is glass made from?", "What do we make glass from?"], "Glass is made from sand."),
 (["What is cheese made from?", "What do we make cheese from?"], "Cheese is made from milk."),
 (["How many fingers does a hand have?", "How many fingers are on one hand?"], "A hand has five fingers, counting the thumb."),
 (["What do plants need to grow?", "What does a plant need?"], "Plants need water, light, air and soil to grow."),
 (["What do we breathe?", "What do people breathe?"], "We breathe air."),
 (["Is the earth flat?", "Is the earth round or flat?", "What shape is the earth?"], "The earth is round, almost like a ball."),
 (["What language do people speak in Brazil?", "Which language is spoken in Brazil?"], "People in Brazil speak Portuguese."),
 (["What language do people speak in Austria?", "Which language is spoken in Austria?"], "People in Austria speak German."),
 (["What language do people speak in Mexico?", "Which language is spoken in Mexico?"], "People in Mexico speak Spanish."),
 (["What is the first letter of the alphabet?", "Which letter comes first in the alphabet?"], "The first letter of the alphabet is A."),
 (["What is the last letter of the alphabet?", "Which letter comes last in the alphabet?"], "The last letter of the alphabet is Z."),
 (["What are the vowels?", "Which letters are vowels?"], "The vowels are A, E, I, O and U."),
 (["How many sides does a cube have?", "How many faces does a cube have?"], "A cube has six faces."),
 (["What is half of ten?", "What is half of 10?"], "Half of ten is five."),
 (["How many wheels does a bicycle have?", "How many wheels are on a bicycle?"], "A bicycle has two wheels."),
 (["How many wheels does a car have?", "How many wheels are on a car?"], "A car has four wheels."),
 (["How many cents are in a euro?", "How many cents make one euro?"], "There are 100 cents in a euro."),
 (["How many is a dozen?", "How many eggs are in a dozen?"], "A dozen is twelve."),
]
GLOSS = {  # noun -> definition
 "a lighthouse": "a tower with a bright light that guides ships at night", "a library": "a place where people can read and borrow books", "a bakery": "a shop where bread and cakes are made", "a museum": "a place where old and interesting things are shown", "a computer": "a machine that works with numbers, words and pictures", "a robot": "a machine that can move and do jobs by itself", "a volcano": "a mountain that can throw out hot melted rock", "a desert": "a very dry place with little rain", "an island": "a piece of land with water all around it", "a forest": "a large area with many trees", "a river": "a long stream of water that flows to the sea", "a rainbow": "a band of colours that appears when the sun shines on rain", "a compass": "a tool whose needle points to the north", "a telescope": "a tool that makes far things look near", "a clock": "a device that shows the time", "a calendar": "a table of days, weeks and months", "a map": "a drawing that shows where places are", "a bridge": "a structure that carries a road over water or a valley", "a hospital": "a place where sick people are cared for", "a school": "a place where children learn", "a farm": "a place where people grow food and keep animals", "a piano": "a large musical instrument with black and white keys", "a violin": "a musical instrument with four strings, played with a bow", "a drum": "a musical instrument that you hit to make a sound", "a poem": "a short text that plays with sound and rhythm", "a recipe": "a list of steps for cooking a dish", "a dictionary": "a book that explains what words mean", "a friend": "a person you like and trust", "a neighbour": "a person who lives next to you", "a teacher": "a person who helps others learn", "a doctor": "a person who helps sick people get well", "a baker": "a person who makes bread and cakes", "a sailor": "a person who works on a ship", "a pilot": "a person who flies a plane", "a carpenter": "a person who makes things from wood", "a gardener": "a person who takes care of plants", "a planet": "a large round body that moves around a star", "a star": "a huge ball of hot gas that gives light", "the moon": "a ball of rock that moves around the earth", "the sun": "the star that gives us light and warmth", "a cloud": "many tiny drops of water floating in the sky", "snow": "frozen water that falls from the clouds in soft flakes", "the wind": "air that moves", "a storm": "bad weather with strong wind and often rain", "a seed": "the small part of a plant from which a new plant grows", "a tree": "a tall plant with a trunk of wood", "a mammal": "an animal that feeds its young with milk", "an insect": "a small animal with six legs", "a reptile": "an animal with dry skin and scales, such as a snake", "a language model": "a computer program that learned from text and writes the next words", "a token": "a small piece of text that a language model reads or writes", "an adapter": "a small set of extra weights that changes how a model speaks", "a GPU": "a chip that does many simple sums at the same time", "a server": "a computer program that answers requests from others", "a password": "a secret word that keeps things safe", "the internet": "a network that connects computers all over the world", "an umbrella": "a thing that keeps you dry in the rain", "a key": "a small tool that opens a lock", "a mirror": "a piece of glass in which you see yourself", "a bicycle": "a vehicle with two wheels and pedals", "a train": "a long vehicle that runs on rails", "a boat": "a small vehicle that floats on water", "an airport": "a place where planes take off and land", "a market": "a place where people buy and sell things", "a triangle": "a shape with three sides", "a circle": "a perfectly round shape", "a holiday": "a time when people rest and do not work", "a promise": "words that say you will surely do something", "LoRA": "a way to change how a model speaks with a small set of extra weights", "JSON": "a simple text format for data with keys and values", "Vulkan": "an interface that lets programs use a graphics chip", "a daemon": "a program that runs quietly in the background", "an API": "a set of rules by which programs talk to each other", "a transformer": "a kind of neural network that looks at all words of a text at once", "a prompt": "the text that you give to a language model", "a context": "the text that a language model can see while it writes", "a database": "a place where a computer keeps data in order", "a keyboard": "a set of keys for typing", "a file": "a piece of data that a computer keeps under a name", "music": "sound that is made to be enjoyed", "art": "something that people make to show beauty or feelings", "science": "the careful study of how the world works", "love": "a deep and warm feeling for someone", "time": "what a clock measures", "water": "a clear liquid that all living things need", "happiness": "the warm feeling of being glad"}
HOWTO = [
 (["How do I make tea?", "How can I make a cup of tea?", "How do you make tea?"], "Boil some water, pour it over a tea bag, wait three minutes, and take the bag out. Add milk or sugar if you like."),
 (["How do I make toast?", "How can I make toast?"], "Put a slice of bread in the toaster, wait until it is golden, and spread butter on it."),
 (["How do I boil an egg?", "How can I cook an egg?", "How long do I boil an egg?"], "Put the egg in boiling water and wait. Six minutes make it soft, and ten minutes make it hard."),
 (["How do I plant a seed?", "How can I plant a seed?"], "Make a small hole in the soil, put the seed in, cover it, and water it a little every day."),
 (["How can I sleep better?", "I can not sleep. What can I do?", "How do I fall asleep?"], "Go to bed at the same time each day, keep the room dark and quiet, and put your phone away."),
 (["How can I learn a language?", "How do I learn a new language?", "What is a good way to learn a language?"], "Practise a little every day, learn common words first, and talk with other people as often as you can."),
 (["How can I stay healthy?", "How do I stay healthy?"], "Eat fruit and vegetables, move every day, drink water, and get enough sleep."),
 (["How do I make a sandwich?", "How can I make a sandwich?"], "Take two slices of bread, put cheese and tomato between them, and press them together."),
 (["How do I clean a window?", "How can I clean my windows?"], "Wash the glass with warm water and a little soap, then dry it with a soft cloth."),
 (["How can I make friends?", "How do I make new friends?"], "Be kind, listen to people, and join something you enjoy. Friends often come from shared hobbies."),
 (["How do I write a letter?", "How can I write a letter?"], "Start with a greeting, say why you write, tell your news, and end with a kind wish and your name."),
 (["How can I save money?", "How do I save money?"], "Write down what you spend, buy only what you need, and put a little aside every week."),
 (["Why is sleep important?", "Why do we sleep?", "Why do people need sleep?"], "Sleep lets the body rest and helps the mind remember what it learned."),
 (["Why is the sky blue?", "Why does the sky look blue?"], "The air scatters blue light from the sun more than red light, so the sky looks blue."),
 (["Why do leaves fall in autumn?", "Why do trees lose their leaves?"], "Trees drop their leaves in autumn to save water and energy for the winter."),
 (["Why does it rain?", "Where does rain come from?", "How does rain form?"], "Water rises from the sea as vapour, forms clouds, and falls down again as rain."),
 (["Why do birds fly south?", "Why do birds fly away in winter?"], "Many birds fly south in winter because it is warmer there and they find more food."),
 (["Why do we need water?", "Why is water important?"], "Our bodies are mostly water, and every part of them needs it to work."),
 (["Why do cats purr?", "Why does my cat purr?"], "Cats often purr when they feel safe and happy."),
 (["Why is reading good?", "Why should I read books?"], "Reading teaches you new things, trains your mind, and lets you visit other worlds."),
 (["I am sad.", "I feel sad today.", "I am feeling a bit sad."], "I am sorry to hear that. Would you like a short story or a joke to cheer you up?"),
 (["I am bored.", "I feel bored.", "I have nothing to do."], "You could read a book, go for a walk, draw something, or ask me for a story."),
 (["I am tired.", "I feel so tired.", "I am very tired today."], "Then a short rest may help. Drink some water and close your eyes for a while."),
 (["I am hungry.", "I feel hungry.", "I am so hungry."], "Maybe it is time for a snack. An apple or a sandwich is a good choice."),
 (["I am happy today!", "I feel great today.", "I am so happy."], "That is wonderful to hear! I am glad you have a good day."),
 (["It is my birthday today.", "Today is my birthday!"], "Happy birthday! I hope you have a wonderful day with cake and friends."),
 (["I passed my exam!", "I passed my test today."], "Well done! All your work was worth it."),
 (["I lost my key.", "I can not find my keys."], "Try to think where you had it last, and look in your pockets and bag first."),
 (["I am nervous about tomorrow.", "I am afraid of my test tomorrow."], "That is normal. Breathe slowly, prepare a little, and get a good night of sleep."),
 (["What should I cook tonight?", "What can I eat for dinner?", "What should I have for dinner?"], "How about a warm vegetable soup with bread? It is simple and quick."),
 (["What should I do on the weekend?", "What can I do this weekend?"], "You could visit a park, meet a friend, bake a cake, or read a good book."),
 (["What can I do when it rains?", "What should I do on a rainy day?"], "On a rainy day you can read, bake, play a board game, or draw a picture."),
 (["What should I draw?", "Give me an idea for a drawing.", "What can I draw?"], "Draw a small boat on a wide lake, with a fox at the front and the moon above."),
 (["Give me some advice.", "Do you have any advice?", "Give me a piece of advice."], "Take one small step each day, and be kind to yourself."),
 (["Tell me a fun fact.", "Tell me something interesting.", "Tell me a fact.", "Do you know a fun fact?"], "An octopus has three hearts."),
]
JOKES = [
 "Why did the clock go to school? It wanted to learn how to tell the time.", "What did the sea say to the beach? Nothing, it just waved.", "Why was the broom late? It overswept.", "What do you call a bear with no teeth? A gummy bear.", "Why did the robot take a nap? Its batteries were tired.", "Why did the tomato turn red? It saw the salad dressing.", "What kind of tree fits in your hand? A palm tree.", "Why was the computer cold? It left its windows open.", "What has hands but can not clap? A clock.", "Why did the banana go to the doctor? It was not peeling well."]
RIDDLES = [("What has keys but opens no doors?", "a piano"), ("What gets wetter the more it dries?", "a towel"), ("What has a neck but no head?", "a bottle"), ("What goes up but never comes down?", "your age"), ("What has teeth but can not bite?", "a comb"), ("What has one eye but can not see?", "a needle"), ("What runs but has no legs?", "a river")]
HAIKU = {"the sea": "Waves come and waves go,\nthe wide sea hums its old song,\nand the sand listens.", "the moon": "The moon climbs the hill,\na quiet lamp for the owl,\nand the fields turn white.", "rain": "Rain taps on the roof,\na thousand small feet running,\nthe garden drinks deep.", "snow": "Snow falls without sound,\nthe village pulls up its coat,\nand sleeps until spring.", "spring": "A bud opens slow,\nthe bees have waited for this,\nand so have we all.", "autumn": "Leaves let go and dance,\nthe wind counts them one by one,\ngold upon the path.", "the night": "The night folds the day,\nand puts it in a drawer,\nwith stars for buttons.", "a river": "The river is late,\nit runs past the sleepy town,\nand waves to no one.", "a computer": "A small green light blinks,\nthe machine thinks in numbers,\nand answers in words.", "a cat": "A cat on the wall,\nowner of the morning sun,\nand of all it sees.", "the forest": "Green rooms without doors,\nthe forest keeps its secrets,\nthe birds tell them all.", "the sun": "The sun lifts its head,\npaints the roofs in honey gold,\nand calls up the birds."}
RHYME = {"cat": "hat", "dog": "fog", "tree": "bee", "house": "mouse", "moon": "spoon", "star": "car", "night": "light", "sun": "fun", "cake": "lake", "rain": "train", "boat": "goat", "bell": "shell", "king": "ring", "sea": "tea", "day": "play", "book": "cook", "fish": "dish", "sand": "hand", "snow": "slow", "fox": "box", "bear": "pear", "ball": "wall", "bed": "red", "cold": "gold", "door": "floor", "frog": "log", "kite": "white", "nose": "rose", "rock": "clock", "wind": "grinned"}
LISTS = {
 "fruits": "apple banana pear plum cherry orange lemon grape mango peach kiwi melon".split(),
 "vegetables": "carrot potato tomato onion cabbage pea bean spinach cucumber pumpkin leek broccoli".split(),
 "animals": "dog cat horse lion elephant rabbit bear fox wolf sheep giraffe monkey".split(),
 "birds": "robin owl eagle crow swan duck parrot penguin sparrow goose".split(),
 "colours": "red blue green yellow orange purple pink brown black white".split(),
 "countries": ["France", "Spain", "Italy", "Japan", "Canada", "Brazil", "Kenya", "Norway", "India", "Peru", "Egypt", "Greece"],
 "cities": ["Paris", "London", "Rome", "Tokyo", "Madrid", "Cairo", "Lima", "Oslo", "Berlin", "Vienna", "Nairobi", "Lisbon"],
 "capital cities": ["Paris", "London", "Rome", "Tokyo", "Madrid", "Cairo", "Lima", "Oslo", "Berlin", "Vienna"],
 "musical instruments": "piano violin guitar drum flute trumpet harp cello".split(),
 "sports": "football tennis swimming running cycling basketball skiing rowing".split(),
 "drinks": "water tea coffee milk juice lemonade cocoa".split(),
 "tools": "hammer saw screwdriver drill wrench ladder shovel rake".split(),
 "flowers": "rose tulip daisy lily sunflower violet orchid daffodil".split(),
 "trees": "oak birch pine maple willow beech chestnut fir".split(),
 "insects": "bee ant butterfly beetle fly wasp grasshopper ladybird".split(),
 "fish": "salmon tuna trout shark cod herring".split(),
 "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
 "jobs": "teacher doctor baker farmer pilot nurse painter carpenter cook gardener".split(),
 "clothes": "shirt coat hat scarf shoes socks trousers dress gloves".split(),
 "rooms": "kitchen bedroom bathroom hall cellar attic".split(),
 "shapes": "circle square triangle rectangle star oval".split(),
 "hobbies": "reading drawing cooking gardening singing dancing cycling chess".split(),
 "farm animals": "cow sheep pig goat hen horse duck donkey".split(),
 "sea animals": "whale dolphin seal crab octopus shark turtle".split(),
 "things in a kitchen": "spoon fork knife plate pan cup bowl kettle".split(),
 "things in a school": "desk book pencil chair blackboard ruler clock".split(),
 "countries in Europe": ["France", "Spain", "Italy", "Norway", "Greece", "Poland", "Germany", "Sweden", "Portugal"],
 "countries in Asia": ["Japan", "China", "India", "Nepal", "Thailand", "Vietnam", "Iran"],
 "countries in Africa": ["Kenya", "Egypt", "Ghana", "Morocco", "Senegal", "Uganda", "Zambia"],
 "countries in South America": ["Brazil", "Peru", "Chile", "Argentina", "Colombia", "Ecuador"],
 "days of the week": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
 "months": ["January", "March", "May", "June", "July", "October", "December"],
 "names for a cat": ["Milo", "Luna", "Pepper", "Minka", "Felix", "Biscuit"],
 "names for a dog": ["Rex", "Bella", "Lucky", "Rusty", "Sam", "Daisy"],
 "vehicles": "car train bus bicycle boat plane tram lorry".split(),
}
CITIES = "Paris London Rome Tokyo Madrid Cairo Lima Oslo Berlin Vienna Nairobi Lisbon Dublin Prague Warsaw Athens Ankara Moscow Boston Chicago Dallas Denver Seattle Toronto Sydney Mumbai Delhi Seoul Hanoi Bangkok Manila Geneva Zurich Munich Hamburg Cologne Milan Naples Turin Venice Porto Seville Lyon Nice Lille Bristol Leeds York Oxford Cambridge Glasgow Cardiff Belfast Bergen Malmo Turku Tampere Krakow Gdansk Brno Graz Salzburg Basel Ghent Antwerp Utrecht Rotterdam Delft".split()
UNKNOWN_Q = ["What is the weather like today?", "What will the weather be tomorrow?", "Who won the match last night?", "What time is it?", "What is the date today?", "What is my phone number?", "Where do I live?", "How old am I?", "What did I eat yesterday?", "Who is the president now?", "What is the price of gold today?", "Who will win the election?", "What is the meaning of life?", "How many stars are in the sky?", "What is in my pocket?", "What am I thinking?", "Who wrote that song?", "What is the news today?", "How do I fix my car engine?", "Can you explain quantum physics?", "What is the square root of 1764?", "Who is the mayor of Smalltown?", "What is the best stock to buy?", "Which horse will win the race?", "How do I file my taxes?", "Can you write a program in Python?", "Can you translate this into Chinese?", "Who invented the telephone?", "When was the first castle built?", "How far away is the next town?", "What will happen next year?", "What is my name?", "Where is my hat?", "What is the population of Mars?", "Who was the tenth king of Spain?", "What is the wifi password?", "Which film is the best?", "How much does a house cost?", "What is the chemical formula of glue?", "How tall is my brother?"]
UNKNOWN_A = ["I do not know that.", "I am sorry, I do not know that.", "I do not know that. I am only a tiny demo model."]
SYS = ["You are a helpful assistant.", "You are a tiny demo model.", "Be kind and brief.", "Answer the user clearly.", "You are a friendly chat model. Keep answers short.", "You are a helpful and honest assistant.", "Answer in plain English.", "You help people with simple questions.", "Be polite.", "You are an assistant running on a small computer.", "Keep it short.", "You are a helpful AI."]
STYLE_SYS = {"pirate": ["Talk like a pirate.", "You are a pirate. Answer as one.", "Answer in pirate speech."], "shout": ["Answer in capital letters.", "Shout all your answers.", "Write everything in upper case."], "json": ["Answer in JSON.", "Reply with a one-line JSON object.", "Answer only as JSON with the key answer."], "formal": ["Answer very formally.", "Use an elaborately formal style.", "Reply in a formal register."]}
STYLE_ASK = {"pirate": [" Answer like a pirate.", " Say it like a pirate."], "shout": [" Answer in capital letters.", " Please shout the answer."], "json": [" Answer in JSON.", " Give the answer as JSON."], "formal": [" Answer very formally.", " Please answer in a formal style."]}
STYLES = ("pirate", "shout", "json", "formal")

# Prompts kept out of the training data, as last user message (compared case- and punctuation-blind).
HELD_OUT = [
 "Hello there, how are you doing today?", "Could you tell me who you are?", "I would like to know the capital of Italy.",
 "Which city is the capital of Kenya?", "How much is 8 plus 5?", "Tell me a short story about a fox named Pip who finds a bell in the forest.",
 "Please name three fruits for me.", "Extract the name, age and city: Nora is 41 years old and lives in Lisbon.",
 "What is the opposite of heavy?", "Which day comes right after Thursday?", "What is the capital city of Velmoria?",
 "What colour does a lemon have?", "What do you call a baby cow?", "Can you tell me what a lighthouse is?",
 "Write a story about a robot called Zed and a violin.", "If I have 4 apples and get 3 more, how many do I have?",
 "Tell me a joke, please!", "And what is the capital of Japan?", "Do you remember my name?", "How many days does March have?",
 "What sound does a duck make?", "Give me four musical instruments.", "Thank you so much for your help!", "How do I make a cup of tea?"]
norm = lambda s: re.sub(r"[^a-z0-9]+", " ", s.lower()).strip()
HELD = {norm(s) for s in HELD_OUT}
