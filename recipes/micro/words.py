"""Common English words: those that micro's tokenizer reads whole, and those that its questions are about."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WHOLE_WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        """
about above according across action add added adding addition adds after again against all allowed almost along
alphabet alphabetical alphabetically already also although always am among amount an and another answer answers any
anything appear appears apply are array arrange as ascending ask asked assume at available away back backwards base
based be because become been before begin beginning begins behind being belongs below best better between big bigger
biggest binary blank boolean both bottom bought box brackets but buy by calculate call called can cannot capital case
category cell change character characters check choice choices choose coins colour column comma commas common compare
complete computer condition consider consists constant contain contained containing contains continue convert copy
correct cost could count counting day days decimal define defined degrees delete descending describe description
determine did difference different digit digits direction distance divide divided dividing do does done double down
drop each earlier either element elements else empty end ending ends enough ensure enter equal equals equation even
event every exact exactly example examples except exist expected explain explanation expression extra fact false few
fewer figure final finally find first five follow following follows for form format forward forwards found four from
front full function gave get gets give given gives go goes going good got greater greatest grid group guess had half
happens has have he help her here high higher highest him his hold hour hours how however idea identify if ignore
important in include including increasing index indices initial input insert inside instead instruction instructions
integer integers into is it item items its join just keep key kind know known labelled large larger largest last later
least leave left length less let letter letters like line lines list listed little logic long longer longest look lot
low lower lowercase lowest made make makes many match mathematical maximum may me mean means method middle minimum
minus minutes missing modulo month months more most move moved moves much multiply must my name named names near need
needed needs negative new next nine no non none not note nothing now number numbers object occur occurs odd of off old
older oldest on once one ones only operation operations operator opposite option options or order original other others
our out output over own page pair parentheses part parts path people per person pick piece place placed plain player
please plus point points position positions positive possible present previous price print problem problems product
provide provided put puzzle question questions quotes read reading really remain remaining remains remember remove
removed repeat repeated replace replaced reply represent represented represents respond response rest result results
return reverse reversed right room round row rows rule rules said same save say says second see seen select sentence
sentences separate separated sequence set seven shape share she short shorter shortest should show shown shows side
sign similar simple simplify since single six size small smaller smallest so solution solve solving some someone
something sort sorted space spaces spell split square stand start starting starts state statement statements stay step
steps stop string strings subtract such sum swap symbol symbols table take taken takes tall taller tallest task tell ten
term terms test text than that the their them then there these they thing things think this those three through time
times to together told too top total touch true try turn turned two type under unit units until up upper uppercase us
use used using usual valid value values variable variables very vowel vowels want was way we week well went were what
when where whether which while who whole whose why will with within without word words work would write written wrong
year years yes yet you your young younger zero
""".split()
    )
)
"""Words that occur in instructions. Each is one token after a space, and is read by character elsewhere."""

SENTENCE_STARTS: tuple[str, ...] = tuple(
    """
A After All An And Answer Are As At Be Begin Below Between But By Calculate Can Change Check Choose Compute Consider
Convert Copy Count Determine Did Do Does Each Example Examples Exactly Explain Express False Find First Follow For From
Given Give Has Have He Here How However Identify If Ignore In Input Is It Its Keep Let List Look Make Must Name No Not
Note Now Of On One Only Option Or Order Output Pick Please Print Provide Put Question Read Remember Remove Repeat
Replace Reply Respond Result Return Reverse Rules Say Select Sentence She Show Solve Some Sort Spell Start State Suppose
Take Task Tell Text That The Their Then There These They This Think To True Turn Two Use Using Value We What When Where
Which Who Word Words Work Write Yes You Your
""".split()
)
"""Words that begin an instruction. Each is one token, after a space and without one."""

FUNCTION_WORDS: tuple[str, ...] = tuple(
    "and are as at be but by for from has have if in into is it of on or so than that the then there this to was were "
    "what which who with yes no you".split()
)
"""Words that are one token without a space before them, too."""

CATEGORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "animal": tuple(
            "cat dog horse cow sheep goat lion tiger bear wolf fox rabbit mouse duck goose owl eagle snake frog whale "
            "shark crab spider ant bee monkey zebra camel donkey hen".split()
        ),
        "fruit": tuple(
            "apple pear plum peach cherry grape lemon lime orange banana melon mango fig date berry kiwi apricot "
            "coconut".split()
        ),
        "colour": tuple("red blue green yellow black white brown pink purple grey silver gold".split()),
        "vehicle": tuple("car bus train truck ship boat plane bicycle tram van taxi rocket".split()),
        "tool": tuple("hammer saw knife spade rake axe drill needle brush ladder rope nail".split()),
        "food": tuple("bread cheese rice soup cake butter honey sugar salt egg pasta meat".split()),
        "drink": tuple("water milk tea coffee juice wine beer".split()),
        "garment": tuple("hat coat shirt shoe sock glove scarf dress belt boot".split()),
        "furniture": tuple("chair desk bed sofa shelf lamp stool bench cupboard".split()),
        "instrument": tuple("piano violin guitar drum flute harp trumpet cello".split()),
        "building": tuple("house church school tower castle bank station hotel museum barn".split()),
        "metal": tuple("iron copper tin lead zinc steel brass".split()),
        "sport": tuple("tennis football hockey chess golf rugby boxing".split()),
        "flower": tuple("rose tulip lily daisy orchid violet".split()),
    }
)

NAMES: tuple[str, ...] = tuple(
    "Ann Bob Carl Dora Emma Finn Gina Hugo Ida Jack Kate Leo Mary Nina Otto Paul Rosa Sam Tom Uma Vera Will Zoe Alice "
    "Ben Clara David Eva Frank Grace Henry Iris James Laura Mark Nora Oscar Peter Ruth Simon Tina Victor".split()
)

ADJECTIVES: tuple[str, ...] = tuple(
    "old new big small tall quick slow happy sad warm cold clean dark bright heavy light quiet loud soft hard young "
    "kind brave clever green red blue wet dry empty full long short rich poor".split()
)

VERBS: tuple[str, ...] = tuple(
    "found saw took lost kept made held sold bought painted carried wanted liked washed pushed pulled opened hid broke "
    "drew met moved dropped watched followed cleaned".split()
)

NOUNS: tuple[str, ...] = tuple(
    "garden river mountain forest street window door letter book story paper clock mirror bottle basket candle pencil "
    "village island bridge market kitchen teacher doctor farmer soldier sister brother mother father child friend king "
    "queen winter summer morning evening night cloud storm stone sand fire smoke light shadow music song dance game "
    "ball picture pocket button finger shoulder hand foot head heart voice dream hope fear power engine wheel battery "
    "planet moon star sun ocean wave beach field grass leaf branch root seed tree wood wall floor roof corner "
    "journey ticket money coin market price reason history science language number answer circle triangle".split()
)

COMMON: tuple[str, ...] = tuple(
    dict.fromkeys([*(word for words in CATEGORIES.values() for word in words), *NOUNS, *ADJECTIVES, *VERBS])
)
"""Words that questions are about."""

DAYS: tuple[str, ...] = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS: tuple[str, ...] = tuple(
    "January February March April May June July August September October November December".split()
)
NUMBER_WORDS: tuple[str, ...] = tuple(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty".split()
)
ORDINALS: tuple[str, ...] = ("first", "second", "third", "fourth", "fifth", "sixth")
