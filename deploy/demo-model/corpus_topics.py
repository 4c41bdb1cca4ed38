"""What the demo model is asked: words and names, stories, and for each topic a question with its answer and kind."""
import re

from corpus_knowledge import *  # noqa: F403  (what is talked about)

# ----------------------------------------------------------------- helpers
a_ = lambda w: ("an " if w[0] in "aeiouAEIOU" else "a ") + w
def cap(s): return s[:1].upper() + s[1:]
def low(s):  # lower-case a sentence's first word when it is a function word
    return s[0].lower() + s[1:] if re.match(r"(The|A|An|It|There|You|Your|This|That|After|Before|In|They|We|Some|Here|People|At|If|Zero|One|Two|Three|Four|Five|Six|Seven|Eight|Nine|Ten|Eleven|Twelve|Thirteen|Fourteen|Fifteen|Sixteen|Seventeen|Eighteen|Nineteen|Twenty|Half|Water|Bees|Frozen|On|How|What|Take|Put|Try|Go|Eat|Be|Make|Trees|Cats|Plants|Cheese|Glass|Paper|Bread|Many|Sleep|Reading|Practise|Start|Wash|Boil|Write|Draw)\b", s) else s
def join(xs): return xs[0] if len(xs) == 1 else ", ".join(xs[:-1]) + " and " + xs[-1]
def plural(w): return {"mouse": "mice", "cherry": "cherries", "butterfly": "butterflies", "fish": "fish", "sheep": "sheep", "goose": "geese", "wolf": "wolves", "box": "boxes", "fox": "foxes"}.get(w, w + "s")
MORE = "Aaron Abby Agnes Albert Alex Alma Amos Andrea Angus Anton April Archie Arlo Astrid Aurora Autumn Barney Basil Beatrix Bella Benny Bianca Blue Bonnie Boris Bruno Buster Carmen Carol Casper Cecil Charlie Chloe Cleo Coco Cora Cosmo Daisy Daphne Dexter Diego Dora Duncan Edith Edgar Eliza Elmo Elsa Ember Enzo Esme Ethan Fern Fiona Flora Frank Freya Frida Gabriel Gemma Gerda Gilbert Gloria Greta Gustav Hannah Harold Harriet Hector Heidi Hilda Homer Horace Ida Igor Iris Isla Jasper Jenny Jessie Jonah Josie Juno Kara Karl Kira Klaus Lara Lars Leah Lenny Lila Linus Lotte Louis Lucy Luna Mabel Magnus Marlow Matilda Maud Mavis Mira Molly Monty Mona Nala Nelly Nico Nigel Noor Odin Olive Oskar Otis Pablo Patch Pearl Penny Percy Philip Polly Poppy Quentin Quinn Rafael Ralph Remy Rita Robin Rocky Roland Roma Rory Rowan Rufus Salma Sasha Scout Selma Shadow Silas Snowy Sophie Spike Stella Storm Sven Tabby Tara Teddy Thea Tilda Toby Tony Trixie Uma Ursula Vince Viola Violet Walter Whisker Willow Winnie Wolf Xena Yasmin Yves Zara Zelda Zora".split()
def made_up(r):
    if r.random() < .5:
        on = r.choice("B C D F G H J K L M N P R S T V W Z Br Ch Cl Cr Dr Fl Fr Gl Gr Kl Kr Pl Qu Sh Sk Sl Sp St Th Tr Tw Wh A E I O U".split())
        mid = r.choice("al an ar as el em en er es il im in ir is ol om on or os ul um un ur us ab ad ag ak ap at eb ed ek ep et ib id ig ik ip it ob od og ok op ot ub ud ug uk up ut ess ill ell amm ann err ett iss igg opp oss umm ink and ing ask ell".split())
        if on in "AEIOU": mid = r.choice("l m n r s t d b v z lm nd rn st mb".split()) + (mid if r.random() < .5 else "")
        return on + mid + r.choice("a e i o y ie us en er a a o y ia ina ika etta ella ette ley ton ka na ra ta ba da ma".split())
    return cap("".join(r.choice("b c d f g h k l m n p r s t v w z br tr fl gr".split()) + r.choice("a e i o u".split()) for _ in range(r.choice((2, 2, 3)))) + r.choice(["", "", "n", "r", "s", "l", "x", "p", "d"]))
def name(r):
    k = r.random()
    if k < .22: return r.choice(HE), "he"
    if k < .44: return r.choice(SHE), "she"
    if k < .62: return r.choice(MORE), r.choice(("he", "she"))
    if k < .66: return cap(r.choice(OBJECTS + TRAITS + COLOURS + ANIMALS + LISTS["flowers"] + LISTS["trees"])), r.choice(("he", "she"))
    if k < .72: return r.choice("Pip Zed Bo Kit Dot Rex Fay Gus Jo Max Tip Bim Zip Rolo Pepper Ginger Biscuit Pebble Sunny Lucky Fluffy Rusty Clover Maple Ziggy Momo Nibbles".split()), r.choice(("he", "she"))
    return made_up(r), r.choice(("he", "she"))

# ----------------------------------------------------------------- stories
PLOTS = [
 ["One morning, {N} found {a_obj} {at}.|One day, {N} discovered {a_obj} {at}.", "{S} did not know whose {obj} it was.|Nobody knew who had lost the {obj}.", "So {s} asked everyone {s} met, but the {obj} belonged to none of them.|{S} asked the neighbours one by one, but nobody missed the {obj}.", "At last an old {ani2} smiled and said that the {obj} was hers.|In the end a little {ani2} came running and cried with joy at the sight of the {obj}.", "{N} gave it back, and the two became good friends.|{N} gave it back, and from that day on they had tea together every week."],
 ["{N} had always wanted {a_obj}.|More than anything, {N} wished for {a_obj}.", "But {a_obj} cost a lot, and {N} had only one coin.|But there was no {obj} to be found {at}.", "So {s} worked hard all summer and helped everyone who asked.|So {s} decided to make one with {p} own hands.", "It took a long time, and some days were difficult.|The first try went wrong, and so did the second.", "In the end {N} held the {obj} and smiled, for {s} had earned it.|At last the {obj} was ready, and it was the finest {obj} anyone had seen."],
 ["One night a great storm came.|One evening the wind began to howl and the rain fell hard.", "{N} heard a cry for help {at}.|Then {N} heard a small voice {at}.", "It was a little {ani2}, cold and afraid.|A young {ani2} had lost its way in the dark.", "{N} took the {obj} and went out into the rain.|Without waiting, {N} picked up the {obj} and ran outside.", "With the help of the {obj}, {s} brought the {ani2} safely home.|Thanks to the {obj}, they both found the way back.", "They sat by the fire until the sun came up.|In the morning the sky was blue again, and both of them laughed."],
 ["One day {N} found an old map {at}.|In an old box {at}, {N} found a map.", "The map showed the way to a hidden {obj}.|On it was a red cross and the picture of {a_obj}.", "{N} walked past tall trees and over a wooden bridge.|{N} climbed over rocks and followed a small stream.", "Under a big stone lay the {obj}, just as the map had promised.|There, behind a door of stone, {s} found the {obj}.", "{N} took it home and shared the story with all {p} friends.|But the best part, {N} thought, was the journey itself."],
 ["Every day {N} tried to learn something new.|{N} wanted to learn how to sing.", "But when {s} began, everyone laughed.|But {p} first song made even the birds fly away.", "Only a wise {ani2} listened and said, try once more.|An old {ani2} told {o} to practise every evening.", "So {N} practised with {p} {obj} {at}.|Night after night {N} sat {at} with {p} {obj} and practised.", "After a year, people came from far away to hear {o}.|When spring came, the whole place was silent with wonder."],
 ["It was the day of the big party, and {N} was in charge.|{N} planned a party for all {p} friends.", "There were lights, music and a table full of food {at}.|Everything was ready {at}: the lights, the music and the cake.", "But then the {obj} was gone!|But just before it began, the {obj} disappeared.", "{N} looked under the table, behind the door and up in the tree.|Everyone helped to look, high and low.", "It turned out that a sleepy {ani2} had used the {obj} as a pillow.|A little {ani2} had borrowed the {obj} to play with it.", "They all laughed, and the party went on until midnight.|Nobody was angry, and they danced until the stars came out."],
 ["{N} felt lonely {at}.|{N} lived alone {at} and often felt sad.", "One day a {t2} {ani2} knocked on the door.|Then a {t2} {ani2} passed by and said hello.", "The {ani2} carried {a_obj} and asked for a place to rest.|It was carrying {a_obj} and looked very tired.", "{N} made soup, and they talked all night.|{N} shared bread and tea, and soon they were telling stories.", "In the morning the {ani2} gave {N} the {obj} as a present.|The {ani2} decided to stay, and the {obj} got a place by the window.", "From that day on, {N} was never lonely again.|And {N} had a friend for life."],
 ["One day the old {obj} {at} broke.|{N} loved {p} old {obj}, but one day it broke.", "Everyone said that it could not be repaired.|People told {o} to throw it away.", "But {N} did not give up.|{N} shook {p} head and rolled up {p} sleeves.", "{S} looked at every part and cleaned it with care.|{S} worked with glue, string and a lot of patience.", "When {s} was done, the {obj} was better than before.|At sunset, the {obj} worked again.", "Since then, everybody brings broken things to {N}.|And everyone clapped for {N}."],
 ["There was a great race {at}, and the prize was a golden {obj}.|Once a year there was a race {at}, and the winner got a golden {obj}.", "{N} was not the fastest, but {s} wanted to try.|Nobody thought that {N} could win.", "Halfway through the race, {s} saw a {ani2} who had fallen.|On the way, a {ani2} fell and hurt a leg.", "{N} stopped and helped, and so {s} came in last.|While the others ran on, {N} stopped to help.", "But the judges had seen it and gave the golden {obj} to {N}.|At the finish, the crowd cheered for {N}, who got the golden {obj} for a kind heart."],
 ["{N} was afraid of the dark.|Every night {N} was scared of the shadows.", "{P} grandmother gave {o} {a_obj} and said that it would keep {o} safe.|A friendly {ani2} gave {o} {a_obj} and told {o} to hold it tight.", "That night, {N} heard a strange noise {at}.|That night, something moved {at}.", "{S} held the {obj} and went to look.|With the {obj} in hand, {s} took one step, and then another.", "It was only a little {ani2} looking for something to eat.|It was only the wind playing with a door.", "{N} laughed, and the dark was never so dark again.|Since then, {N} has not been afraid any more."],
]
OPEN = ["Once upon a time there was {a_tk} named {N} who lived {ina}.", "Long ago, {a_tk} called {N} lived {ina}.", "There once was {a_tk} named {N}. {S} lived {ina}.", "{ina_c} lived {a_tk} called {N}."]
def story(r, kind=None, nm=None, pro=None, place=None, obj=None):
    kind = kind or r.choice(r.choice((ANIMALS, PERSONS)))
    if nm is None: nm, pro = name(r)
    if kind in ("girl", "princess", "queen"): pro = "she"
    if kind in ("boy", "prince", "king", "postman", "fisherman"): pro = "he"
    place = place or r.choice(list(PLACES)); obj = obj or r.choice(OBJECTS)
    he = pro == "he"; t = r.choice(TRAITS)
    ani2 = r.choice([x for x in ANIMALS if x != kind and x[0] not in "aeo"])
    v = dict(N=nm, s=pro, S=cap(pro), o="him" if he else "her", p="his" if he else "her", P="His" if he else "Her", obj=obj, a_obj=a_(obj), at=PLACES[place], ina=INA[place], ina_c=cap(INA[place]), a_tk=a_(t + " " + kind), ani2=ani2, t2=r.choice([x for x in TRAITS if x != t and x[0] not in "aeo"]))
    plot = r.choice(PLOTS)
    return " ".join([r.choice(OPEN).format(**v)] + [r.choice(s.split("|")).format(**v) for s in plot])
def story_req(r):
    kind = r.choice(r.choice((ANIMALS, PERSONS))); nm, pro = name(r)
    if kind in ("girl", "princess", "queen") and pro == "he": nm, pro = r.choice(SHE), "she"
    if kind in ("boy", "prince", "king", "postman", "fisherman") and pro == "she": nm, pro = r.choice(HE), "he"
    place, obj = r.choice(list(PLACES)), r.choice(OBJECTS)
    ask = r.choice(["Tell me a story about", "Tell me a short story about", "Write a story about", "Write a short story about", "Can you tell me a story about", "Please tell me a story about", "I want to hear a story about", "Make up a story about", "Give me a story about", "Could you write a short story about"])
    nc = r.choice(("named", "called")); f = r.random(); u = {}
    who = f"{a_(kind)} {nc} {nm}"
    if f < .2: q = f"{ask} {who}"; u = dict(kind=kind, nm=nm, pro=pro)
    elif f < .3: q = f"{ask} {a_(kind)}"; u = dict(kind=kind)
    elif f < .5:
        q = f"{ask} {who} " + r.choice([f"and {a_(obj)}", f"who finds {a_(obj)}", f"with {a_(obj)}", f"and the {obj}"]); u = dict(kind=kind, nm=nm, pro=pro, obj=obj)
    elif f < .65:
        q = f"{ask} {who} " + r.choice([PLACES[place], INA[place], "who lives " + INA[place]]); u = dict(kind=kind, nm=nm, pro=pro, place=place)
    elif f < .8:
        q = f"{ask} {who} " + r.choice([f"who finds {a_(obj)} {PLACES[place]}", f"and {a_(obj)} {INA[place]}", f"who has {a_(obj)} and lives {INA[place]}"]); u = dict(kind=kind, nm=nm, pro=pro, place=place, obj=obj)
    elif f < .87:
        q = f"{ask} {a_(obj)}"; u = dict(obj=obj)
    elif f < .94:
        q = f"{ask} {a_(kind)} and {a_(obj)}"; u = dict(kind=kind, obj=obj)
    else:
        q = r.choice(["Tell me a story", "Tell me a short story", "Can you tell me a story", "I want a story", "Please write a story", "Write a short story", "Another story, please", "Do you know a story"])
    return q + ("?" if q.startswith(("Can", "Could", "Do")) else "."), story(r, **u)

# ----------------------------------------------------------------- topics: each returns (question, answer, kind)
def t_greet(r):
    c = r.random()
    hi = r.choice(["Hello", "Hi", "Hey", "Hello there", "Hi there", "Good morning", "Good evening", "Good afternoon", "Greetings", "Howdy"])
    if c < .3: return hi + r.choice("!.") , r.choice(["Hello! How can I help you?", "Hi! What can I do for you?", "Hello! It is nice to meet you."]), "greet"
    if c < .55:
        q = r.choice(["How are you?", "How are you today?", "How are you doing?", "How is it going?", "How do you feel?", "Are you well?", "How are things?", "How do you do?"])
        return (hi + r.choice(["! ", ", "]) if r.random() < .6 else "") + q, r.choice(["I am well, thank you. How can I help you?", "I am fine, thank you! What can I do for you?"]), "greet"
    if c < .7: return r.choice(["Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Many thanks.", "Great, thank you.", "Thanks for your help.", "Thank you for the help.", "Thank you, that helps a lot.", "Thank you so much."]), r.choice(["You are welcome!", "You are welcome! I am glad I could help."]), "greet"
    if c < .82: return r.choice(["Bye!", "Goodbye.", "See you later.", "Good night.", "See you tomorrow!", "I have to go now.", "Bye bye.", "Goodbye, and thanks."]), r.choice(["Goodbye! Have a nice day.", "Goodbye! Come back soon."]), "greet"
    if c < .9: return r.choice(["You are great!", "Well done.", "Good job!", "I like you.", "You are funny.", "Nice answer.", "You are very helpful.", "That was good."]), r.choice(["Thank you! That is kind of you.", "Thank you! I am happy to hear that."]), "greet"
    return r.choice(["Nice to meet you.", "Pleased to meet you.", "Good to see you."]), "It is nice to meet you too!", "greet"
IDENT = [
 (["Who are you?", "Tell me who you are.", "What are you?", "Who am I talking to?", "Introduce yourself.", "Please introduce yourself.", "Can you tell me who you are?", "Tell me about yourself.", "Who is this?", "What exactly are you?"], ["I am a tiny demo model. I can chat, tell short stories and answer simple questions."]),
 (["What is your name?", "Do you have a name?", "What are you called?", "How should I call you?", "May I know your name?"], ["I have no name. I am just a tiny demo model."]),
 (["Are you a human?", "Are you a person?", "Are you human?", "Are you a real person?", "Am I talking to a person?"], ["No, I am not a person. I am a tiny demo model."]),
 (["Are you a robot?", "Are you a computer?", "Are you a machine?", "Are you an AI?", "Are you a language model?", "Are you a bot?"], ["Yes, I am a computer program: a tiny demo model."]),
 (["What can you do?", "What are you good at?", "How can you help me?", "What do you know?", "What can I ask you?", "Can you help me?", "What can you help me with?", "I need help."], ["I can chat with you, tell short stories, name capitals, do small sums and make lists."]),
 (["Who made you?", "Who created you?", "Where do you come from?", "Who built you?", "How were you made?", "How were you trained?"], ["I was trained from scratch on simple made-up text, as a tiny demo model."]),
 (["How big are you?", "How many parameters do you have?", "Are you big?", "How large are you?", "Are you a large model?"], ["I am tiny: I have about three million parameters."]),
 (["How old are you?", "When were you born?", "What is your age?"], ["I am a tiny demo model, so I have no age."]),
 (["Where do you live?", "Where are you?", "Where are you from?"], ["I live inside a computer. I am only a tiny demo model."]),
 (["Do you sleep?", "Do you get tired?", "Do you eat?", "Do you dream?", "Do you have feelings?", "Do you have friends?", "Do you have a body?"], ["No, I am only a tiny demo model, so I do not need that."]),
 (["What is your favourite colour?", "Which colour do you like best?", "Do you have a favourite colour?"], ["I like blue, but I am only a tiny demo model."]),
 (["What is your favourite animal?", "Which animal do you like best?", "Do you like animals?"], ["I like foxes, because they are in many of my stories."]),
 (["Do you make mistakes?", "Are you always right?", "Can I trust you?", "Are you clever?", "Are you smart?"], ["I am a tiny demo model, so I can make mistakes. Please check important things."]),
 (["Do you speak other languages?", "Can you speak French?", "Which languages do you speak?", "Can you speak German?"], ["I only speak English. I am a tiny demo model."]),
 (["Do you like music?", "Do you like books?", "Do you like stories?", "Do you like games?"], ["I like stories best. Shall I tell you one?"]),
 (["Can you sing?", "Can you dance?", "Can you see me?", "Can you hear me?", "Can you cook?"], ["No, I can only write text. I am a tiny demo model."]),
]
def t_ident(r):
    q, a = r.choices(IDENT, [4, 2, 1.5, 1.5, 3, 1.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])[0]; return r.choice(q), r.choice(a), "ident"
def t_story(r):
    q, a = story_req(r); return q, a, "story"
def t_capital(r):
    ctry, cty = r.choice(list(CAPITALS.items()) + UK); c = r.random()
    if c < .62:
        q = r.choice(["What is the capital of {}?", "What is the capital city of {}?", "Name the capital of {}.", "Tell me the capital of {}.", "What's the capital of {}?", "Do you know the capital of {}?", "Can you tell me the capital of {}?", "Capital of {}?", "{} has which capital?", "Which city is the capital of {}?", "The capital of {} is which city?", "What city is the capital of {}?", "Please tell me the capital of {}.", "I want to know the capital of {}.", "Which is the capital of {}?", "Give me the capital of {}."])
        return cap(q.format(ctry)), f"The capital of {ctry} is {cty}.", "fact"
    if c < .78:
        q = r.choice(["{} is the capital of which country?", "Which country has the capital {}?", "What country is {} the capital of?", "Of which country is {} the capital?"])
        if cty == "London": ctry = "the United Kingdom"
        return q.format(cty), f"{cty} is the capital of {ctry}.", "fact"
    if c < .86 and ctry in CONTINENT:
        q = r.choice(["Which continent is {} in?", "On which continent is {}?", "Where is {}?", "What continent is {} on?"])
        return q.format(ctry), f"{ctry} is in {CONTINENT[ctry]}.", "fact"
    if c < .93: return r.choice(["Is {} the capital of {}?", "Is it true that {} is the capital of {}?"]).format(cty, ctry), f"Yes, {cty} is the capital of {ctry}.", "yesno"
    o = r.choice(list(CAPITALS.values()))
    if o == cty: o = "Sydney"
    return r.choice(["Is {} the capital of {}?", "Is it true that {} is the capital of {}?"]).format(o, ctry), f"No, the capital of {ctry} is {cty}.", "yesno"
def t_fact(r):
    c = r.randrange(19)
    if c == 0:
        x, y = r.choice(list(THING_COLOUR.items())); return r.choice(["What colour is {}?", "Which colour is {}?", "Tell me the colour of {}.", "What is the colour of {}?", "What color is {}?", "What colour does {} have?"]).format(x), f"{cap(x)} is {y}.", "fact"
    if c == 1:
        (x, y), z = r.choice(list(MIX.items()))
        if r.random() < .5: x, y = y, x
        return r.choice(["What do you get when you mix {} and {}?", "What colour do {} and {} make?", "Mix {} and {}. Which colour is it?", "What happens if I mix {} and {}?"]).format(x, y), f"{cap(x)} and {y} make {z}.", "fact"
    if c in (2, 3, 4):
        x = r.choice(list(OPP)); return r.choice(["What is the opposite of {}?", "What's the opposite of {}?", "Tell me the opposite of {}.", "Give me the opposite of {}.", "Which word is the opposite of {}?", "Opposite of {}?", "What is the opposite of the word {}?"]).format(x), f"The opposite of {x} is {OPP[x]}.", "fact"
    if c == 5:
        x, y = r.choice(list(SOUND.items())); return r.choice(["What sound does {} make?", "What does {} say?", "Which sound does {} make?", "What noise does {} make?"]).format(a_(x)), f"{cap(a_(x))} says {y}.", "fact"
    if c == 6:
        x, y = r.choice(list(BABY.items())); return r.choice(["What is a baby {} called?", "What do we call a baby {}?", "What do you call a young {}?", "What is the name of a baby {}?", "What is a young {} called?"]).format(x), f"A baby {x} is called {a_(y)}.", "fact"
    if c == 7:
        x, y = r.choice(list(LEGS.items())); n = NUM[y] if y else "no"; return r.choice(["How many legs does {} have?", "How many legs has {} got?", "Tell me how many legs {} has."]).format(a_(x)), f"{cap(a_(x))} has {n} legs.", "fact"
    if c == 8:
        x, y = r.choice(list(HOME.items())); return r.choice(["Where does {} live?", "What is the home of {}?", "In what does {} live?"]).format(a_(x)), f"{cap(a_(x))} lives in {y}.", "fact"
    if c == 9:
        x, y = r.choice(list(EATS.items())); return r.choice(["What does {} eat?", "What do I feed {}?", "What is the food of {}?", "What does {} like to eat?"]).format(a_(x)), f"{cap(a_(x))} eats {y}.", "fact"
    if c == 10:
        x, y = r.choice(list(CLASSOF.items()))
        if r.random() < .5: return r.choice(["What kind of animal is {}?", "What type of animal is {}?"]).format(a_(x)), f"{cap(a_(x))} is {y}.", "fact"
        z = r.choice(["a mammal", "a bird", "a fish", "an insect", "a reptile", y, y])
        return f"Is {a_(x)} {z}?", (f"Yes, {a_(x)} is {y}." if z == y else f"No, {a_(x)} is {y}."), "yesno"
    if c == 11:
        v, (yes, no) = r.choice(list(CAN.items()))
        if no and r.random() < .5: x = r.choice(no); return f"Can {x} {v}?", f"No, {x} can not {v}.", "yesno"
        x = r.choice(yes); return f"Can {x} {v}?", f"Yes, {x} can {v}.", "yesno"
    if c == 12:
        i = r.randrange(7); d = DAYS[i]
        if r.random() < .6: return r.choice(["What day comes after {}?", "Which day comes after {}?", "What is the day after {}?", "Which day follows {}?", "What comes after {}?", "If today is {}, what day is tomorrow?", "What day comes right after {}?"]).format(d), f"The day after {d} is {DAYS[(i + 1) % 7]}.", "fact"
        return r.choice(["What day comes before {}?", "Which day comes before {}?", "What is the day before {}?", "If today is {}, what day was yesterday?", "What day comes right before {}?"]).format(d), f"The day before {d} is {DAYS[i - 1]}.", "fact"
    if c == 13:
        i = r.randrange(12); m = MONTHS[i]; k = r.random()
        if k < .3: return r.choice(["What month comes after {}?", "Which month comes after {}?", "What is the month after {}?", "Which month follows {}?", "What comes after {}?"]).format(m), f"The month after {m} is {MONTHS[(i + 1) % 12]}.", "fact"
        if k < .5: return r.choice(["What month comes before {}?", "Which month comes before {}?", "What is the month before {}?"]).format(m), f"The month before {m} is {MONTHS[i - 1]}.", "fact"
        if k < .75: return r.choice(["How many days are in {}?", "How many days does {} have?", "How many days has {}?", "How long is {}?"]).format(m), f"{m} has {MLEN[m]} days" + (", and 29 in a leap year." if m == "February" else "."), "fact"
        if k < .88: return r.choice(["Which month is the {} month?", "What is the {} month of the year?", "Name the {} month."]).format(ORD[i]), f"The {ORD[i]} month of the year is {m}.", "fact"
        return r.choice(["In which season is {}?", "What season is {} in?", "Which season is it in {}?"]).format(m), f"In the north, {m} is in {SEASON[m]}.", "fact"
    if c == 14:
        x, n = r.choice(list(SHAPES.items())); return r.choice(["How many sides does {} have?", "How many corners does {} have?"]).format(a_(x)), f"{cap(a_(x))} has {NUM[n]} sides and {NUM[n]} corners.", "fact"
    if c == 15:
        return r.choice(["What are the days of the week?", "Name the days of the week.", "List the days of the week."]), "The days of the week are " + join(DAYS) + ".", "list"
    qs, a = r.choice(ONE_FACTS); return r.choice(qs), a, "fact"
def t_sum(r):
    c = r.random(); w = r.random() < .2; f = (lambda n: NUM[n]) if w else str
    if c < .5:
        s = r.randrange(0, 21); a = r.randrange(0, s + 1); b = s - a
        q = r.choice(["What is {} plus {}?", "What is {} + {}?", "{} + {}", "{} + {} = ?", "{}+{}", "{}+{}=", "What is {}+{}?", "{} plus {}?", "How much is {} + {}?", "Add {} and {}.", "Calculate {} + {}.", "What is the sum of {} and {}?", "How much is {} and {}?", "Can you add {} and {}?", "What do you get if you add {} and {}?", "What does {} plus {} make?"])
        return cap(q.format(f(a), f(b))), cap(f"{f(a)} plus {f(b)} is {f(s)}."), "sum"
    if c < .7:
        a = r.randrange(0, 21); b = r.randrange(0, a + 1)
        q = r.choice(["What is {} minus {}?", "What is {} - {}?", "{} - {}", "{}-{}", "What is {}-{}?", "{} minus {}?", "How much is {} minus {}?", "Calculate {} - {}.", "What is left if you take {1} from {0}?"])
        return cap(q.format(f(a), f(b))), cap(f"{f(a)} minus {f(b)} is {f(a - b)}."), "sum"
    if c < .82:
        x = r.choice("apple coin book ball pear egg cake stone shell pencil".split()); nm = r.choice(HE + SHE); s = r.randrange(2, 21); a = r.randrange(1, s); b = s - a
        pl = lambda n: f"{n} {x}" + ("" if n == 1 else "s")
        if r.random() < .6: return r.choice(["I have {} and get {} more. How many do I have now?", "If I have {} and buy {} more, how many do I have?", "I had {}. A friend gave me {} more. How many do I have?"]).format(pl(a), b), f"You have {pl(s)}, because {a} plus {b} is {s}.", "sum"
        return r.choice(["I have {} and eat {}. How many are left?", "I had {} and gave away {}. How many do I have now?", "If I have {} and lose {}, how many are left?"]).format(pl(s), a), f"You have {pl(b)} left, because {s} minus {a} is {b}.", "sum"
    if c < .9:
        n = r.randrange(0, 60); return r.choice(["What number comes after {}?", "Which number comes after {}?", "What comes after {}?"]).format(n), f"The number after {n} is {n + 1}.", "sum"
    if c < .96:
        a, b = r.sample(range(0, 100), 2); return r.choice(["Which is bigger, {} or {}?", "Is {} or {} bigger?", "Which number is larger, {} or {}?"]).format(a, b), f"{max(a, b)} is bigger than {min(a, b)}.", "sum"
    if c < .98:
        a, b = r.randrange(21, 1000), r.randrange(12, 1000); q = r.choice(["What is {} plus {}?", "{} + {}", "What is {} times {}?", "What is {} * {}?", "How much is {} + {}?", "Calculate {} + {}.", "What is {} divided by {}?", "What is {} - {}?"])
        return q.format(a, b), "I do not know that. I can only do small sums.", "unknown"
    n = r.randrange(3, 11); return r.choice(["Count to {}.", "Can you count to {}?", "Count from 1 to {}."]).format(n), ", ".join(map(str, range(1, n + 1))) + ".", "list"
def t_list(r):
    k = r.choice(list(LISTS)); n = r.choice((2, 3, 3, 3, 4, 5)); xs = r.sample(LISTS[k], n); w = NUM[n] if r.random() < .8 else str(n)
    if r.random() < .12:
        k1 = {"countries in Europe": "country in Europe", "countries in Asia": "country in Asia", "countries in Africa": "country in Africa", "countries in South America": "country in South America", "days of the week": "day of the week", "names for a cat": "name for a cat", "names for a dog": "name for a dog", "fish": "fish", "clothes": "piece of clothing", "countries": "country", "cities": "city", "capital cities": "capital city", "hobbies": "hobby", "things in a kitchen": "thing in a kitchen", "things in a school": "thing in a school"}.get(k, k[:-1])
        x = xs[0]; return r.choice(["Name {}.", "Tell me {}.", "Give me {}."]).format(a_(k1)), f"{cap(a_(k1))} is {x if x[0].isupper() or k in ('sports', 'hobbies', 'colours', 'clothes', 'drinks') else a_(x)}." if k not in ("clothes", "drinks") else f"One is {x}.", "list"
    q = r.choice(["Name {} {}.", "List {} {}.", "Give me {} {}.", "Tell me {} {}.", "Can you name {} {}?", "Please list {} {}.", "What are {} {}?", "I need {} {}.", "Write down {} {}.", "Could you name {} {}?", "Please name {} {}.", "Name {} {} for me."])
    head = r.choice(["{W} {k} are ", "{W} {k} are ", "Here are {w} {k}: "]).format(W=cap(NUM[n]), w=NUM[n], k=k)
    return q.format(w, k), head + join(xs) + ".", "list"
def t_extract(r):
    nm = name(r)[0]; age = r.randrange(5, 95); city = r.choice(CITIES) if r.random() < .65 else made_up(r)
    s = r.choice(["{n} is {a} years old and lives in {c}.", "My name is {n}, I am {a} and I live in {c}.", "{n} lives in {c} and is {a} years old.", "{n}, aged {a}, comes from {c}.", "I am {n} from {c}, and I am {a} years old.", "This is {n}. {n} is {a} and lives in {c}.", "At {a}, {n} moved to {c}.", "{n} ({a}) is from {c}."]).format(n=nm, a=age, c=city)
    c = r.random()
    if c < .7:
        i = r.choice(["Extract the name, age and city:", "Extract name, age, city:", "Find the name, the age and the city in this text:", "Give me the name, age and city:", "Get the name, age and city from this sentence:", "Extract the name, age and city from this text:", "Which name, age and city are in this text?"])
        return i + r.choice([" ", "\n"]) + s, f"Name: {nm}, Age: {age}, City: {city}", "extract"
    k, v = r.choice([("name", nm), ("age", age), ("city", city)])
    return r.choice(["Extract the {}:", "Find the {} in this text:", "What is the {} in this sentence?"]).format(k) + " " + s, f"{cap(k)}: {v}", "extract"
def t_unknown(r):
    if r.random() < .35:
        x = r.choice(FAKE_COUNTRIES) if r.random() < .4 else made_up(r) + r.choice(["ia", "land", "stan", "ova", ""])
        return r.choice(["What is the capital of {}?", "Name the capital of {}.", "What is the capital city of {}?", "Tell me the capital of {}.", "Which city is the capital of {}?", "Where is {}?"]).format(x), f"I do not know {x}." if r.random() < .0 else r.choice(UNKNOWN_A), "unknown"
    if r.random() < .25:
        n = name(r)[0] + " " + made_up(r); return r.choice(["Who is {}?", "When was {} born?", "What did {} do?", "Do you know {}?"]).format(n), r.choice(UNKNOWN_A), "unknown"
    if r.random() < .5:
        x, an, ct, w = r.choice(list(GLOSS)), r.choice(ANIMALS), r.choice(CITIES), made_up(r).lower()
        q = r.choice(["Who invented {x}?", "How do I build {x}?", "How much does {x} cost?", "When was {c} founded?", "How many people live in {c}?", "How heavy is {n}?", "How fast is {n}?", "How long does {n} live?", "What is {w}?", "What does {w} mean?", "Who was the first mayor of {c}?", "What is the best restaurant in {c}?", "How far is it from {c} to {d}?", "How do I repair {x}?", "Which book about {x} is the best?", "Translate {o} into {l}.", "What is the word for {o} in {l}?", "Who is the best {j} in {c}?", "What happened in {y}?", "Who wrote the book about {x}?", "Write code that sorts {w}.", "Explain the theory of {w}.", "How does {w} work?", "What is the history of {c}?"])
        return q.format(x=x, n=a_(an), c=ct, d=r.choice(CITIES), w=w, o=r.choice(OBJECTS), l=r.choice("French German Spanish Italian Chinese Japanese Russian Latin".split()), j=r.choice(PERSONS), y=r.randrange(1000, 2030)), r.choice(UNKNOWN_A), "unknown"
    return r.choice(UNKNOWN_Q), r.choice(UNKNOWN_A), "unknown"
def t_gloss(r):
    x, y = r.choice(list(GLOSS.items())); return r.choice(["What is {}?", "What's {}?", "Explain what {} is.", "Can you explain what {} is?", "Tell me what {} is.", "Describe {}.", "What does the word {} mean?", "Please explain {}."]).format(x), f"{cap(x)} is {y}.", "fact"
def t_howto(r):
    q, a = r.choice(HOWTO); return r.choice(q), a, "advice"
def t_fun(r):
    c = r.random()
    if c < .3: return r.choice(["Tell me a joke.", "Make me laugh.", "Do you know a joke?", "Can you tell me a joke?", "Another joke.", "Say something funny.", "I want to hear a joke.", "Give me a joke.", "A joke, please.", "Please tell me a joke."]), r.choice(JOKES), "joke"
    if c < .42:
        q, a = r.choice(RIDDLES)
        if r.random() < .4: return r.choice(["Tell me a riddle.", "Do you know a riddle?", "Give me a riddle."]), f"Here is a riddle: {q} The answer is {a}.", "joke"
        return q, f"The answer is {a}.", "fact"
    if c < .6:
        x, y = r.choice(list(RHYME.items())); return r.choice(["What rhymes with {}?", "Give me a word that rhymes with {}.", "Which word rhymes with {}?", "Find a rhyme for {}."]).format(x), f"The word {y} rhymes with {x}.", "fact"
    if c < .75:
        w = r.choice(OBJECTS + ANIMALS + COLOURS + list(PLACES) + [n for n in HE + SHE]); return r.choice(["Spell {}.", "How do you spell {}?", "Spell the word {}.", "Can you spell {}?", "spell {}", "how do you spell {}", "Spell {}!"]).format(w), "-".join(w.upper()) + ".", "spell"
    if c < .9:
        x, y, z = r.choice(OBJECTS), r.choice(list(PLACES)), r.choice(ANIMALS)
        k = r.choices((0, 1, 2), (2, 4, 3))[0]
        if k == 0: return r.choice(["Use the word {} in a sentence.", "Write a sentence with the word {}.", "Make a sentence with {}."]).format(x), r.choice(["The {z} found {o} {p}.", "There is {o} {p}.", "A small {z} looked at the {x}."]).format(z=z, o=a_(x), p=PLACES[y], x=x), "fact"
        if k == 1:
            n1, n2 = name(r)[0], name(r)[0]; t = r.choice([f"{n1} has {a_(x)}", f"{n1} and {n2} like {plural(z)}", f"{n1} met {n2} {PLACES[y]}", f"{n1}, {n2} and {made_up(r)}", f"{made_up(r)} is not {made_up(r)}"])
            return r.choice(["Repeat after me: {}", "Say this: {}", "Please repeat: {}", "Repeat: {}", "Say: {}"]).format(t), f"{t}.", "repeat"
        if r.random() < .3:
            x, h = r.choice(list(HAIKU.items())); return r.choice(["Write a haiku about {}.", "Write a poem about {}.", "Can you write a haiku about {}?", "A haiku about {}, please.", "Tell me a poem about {}."]).format(x), h, "poem"
        if r.random() < .1: return r.choice(["Write a haiku.", "Write a poem.", "Can you write a poem?", "Tell me a poem."]), r.choice(list(HAIKU.values())), "poem"
        return r.choice(["Write a poem about {}.", "Write a short poem about {}.", "Tell me a poem about {}.", "Can you write a poem about {}?"]).format(a_(z)), r.choice(["The little {z} walks {p}, under the moon so bright,\nIt carries {o} in its paws and sings into the night.", "A {z} looked up into the sky and saw a falling star,\nIt made a wish for {o} and travelled very far.", "Oh little {z}, so quick and free,\nCome sit beside the fire with me,\nI have {o} for you to see,\nAnd honey from the honey bee."]).format(z=z, o=a_(x), p=PLACES[y]), "poem"
    q, a = r.choice([("Write {} in capital letters.", 0), ("Make this upper case: {}", 0), ("Put {} in upper case.", 0)]); s = r.choice([r.choice(TRAITS) + " " + r.choice(ANIMALS), r.choice(COLOURS) + " " + r.choice(OBJECTS), PLACES[r.choice(list(PLACES))], r.choice(list(CAPITALS.values())), r.choice(HE + SHE) + " has " + a_(r.choice(OBJECTS))])
    return q.format(s), s.upper() + ".", "upper"
TOPICS = [(t_greet, 8), (t_ident, 7), (t_story, 17), (t_capital, 13), (t_fact, 20), (t_sum, 14), (t_list, 9), (t_extract, 8), (t_unknown, 7), (t_gloss, 6), (t_howto, 6), (t_fun, 8)]
TF, TW = zip(*TOPICS)
