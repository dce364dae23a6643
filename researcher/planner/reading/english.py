"""The words that a question may be made of without asking for anything: ordinary English, and words of the field.

Place in the flow: account.py looks every word of a topic up here that stands for no setting, level, environment or
count. A word that is in none of these tables is not understood, and the study is refused. That is why the tables hold
words that connect, ask, compare, judge or speak of the person who asks, and no noun that could be varied or trained on.
This module knows nothing of settings.
"""

from __future__ import annotations

import re


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUESTION_WORDS = word_set("""
what which who whose when where why how whether does do did is are was were can could should would will may might must
compare comparison compared versus vs against find determine measure test check study investigate explore examine
evaluate assess identify quantify determine show tell explain answer question ask wonder curious understand know learn
effect affect impact influence matter change difference differ depend dependence role importance important contribute
contribution benefit help helpful hurt harm harmful improve improvement worsen degrade increase decrease raise reduce
best better good worst worse bad optimal optimum optimize optimise ideal suitable sensible right choose choice pick
select prefer recommend advice suggest need necessary needed require unnecessary useful useless worth worthwhile
interact interaction combine combination together alone sensitive sensitivity robust robustness trade-off tradeoff
diverge divergence unstable instability stable stability break collapse fail failure crash blow explode work vary
variation ablate ablation tune tuning sweep search scan grid try experiment trial
""")
"""They make a topic a question or a task; docs/research-method.md names them by what they ask for."""

FUNCTION_WORDS = word_set("""
a an the this that these those it its itself they them their theirs he she his her him we us our ours you your yours i
me my mine one ones oneself who whom and or nor but yet so if then else than as at by for from in into of off on onto
out over under up down to toward towards upon with within without about above across after again along among around
before behind below beneath beside besides between beyond despite during except inside near outside per since through
throughout till until via while whereas though although because unless be been being am isn aren wasn weren have has had
having do doing done don doesn didn not no non none nothing never nobody neither either both all any every each
everything everyone everybody anything anyone some something someone somebody somewhere anywhere everywhere few many
much more most less least lot lots other others another same such only own just also too very quite rather really even
still already almost always often sometimes usually rarely seldom maybe perhaps ever here there now soon later early
yes please thanks thank hello hi etc ie eg e.g i.e hence thus therefore however otherwise instead else well okay ok
like unlike due according regarding concerning given provided let lets wouldn couldn shouldn won can't cannot there's
what's ll ve re d t s m who's whether versus whatever whichever whenever wherever myself ourselves themselves yourself
t a.k.a aka cf resp respectively anyway back away ago apart aside whole
""")

NUMERALS = word_set("""
zero one two three four five six seven eight nine ten eleven twelve dozen hundred thousand million first second third
fourth fifth last next once twice half quarter double triple single couple several pair multiple
""")

ORDINARY = word_set("""
able accept achieve actually add additional admit agree aim allow amount any apparently apply appear argue aspect assume
assumption author available average avoid aware base basic because become begin behave behavior behaviour believe big
boss brief bring broad build buy call care careful case cause certain chance cheap claim class clear close coffee
colleague come common community company completely complex complicated computer concern conclusion conclude confirm
confuse confused consider consist constant contain continue contrast control convince correct cost count course cover
create current customary data day days deal decade decent decide decision deep default define definite degree deliver
demo describe detail develop developer difficult difficulty direct disagree discuss discussion document doubt draw drop
drive dramatic drift earn ease easy efficient effort element eliminate email enable end engineer enough entire equal
essential evening event eventually evidence exact example exist existing expect expectation expense expensive
experience expert expose extent extra extreme fact fair fall false familiar fast faster favor favour feel field figure
final fine finish fit fix fixed flat focus folk follow force form former fraction free frequent friend full fun further
future gain gap gather general genuine get getting give given go goal going gone gotten got great grow growth guess
guide habit handle hand happen happy hard hardly head hear heard heavy high higher hint hold home honest hope hour hours
huge hype hypothesis idea imagine immediate imply indeed indicate individual inform information initial insight
intend interest interested interesting internal introduce intuition involve issue item job join joint judge justify
keen keep kind lab laptop large late lately lead lean leave let level life light likely limit limited line link list
literature little live local long longer look lose loss lower low luck lucky machine main mainly maintain major make
manager manage margin matter maximum maximal mean meaning mention mere mess method middle mild mind minimum minimal
minor minute minutes miss mistake mix moderate moment month months morning motivation move mystery myth name namely
natural
nature near need negative net new newer nice noise noisy normal note notice number numerous object objective obtain
obvious occur odd offer often old online open opinion opportunity opposite option order ordinary original out outcome
outperform overall overlook paper paragraph part particular partner past pay pays people perfect perform performance
period person perspective phase phd phenomenon place plan plain play plausible please plenty point poor popular
position positive possible post practical practice practitioner precise predict presentation present pressure pretty
prevent previous primary principle prior probably problem procedure proceed process produce product professor
programmer progress project promise promising proper proportion propose prove provide public publish pure purpose push
put quality quick quiet range rate rapid rare raw reach react read reader ready real reality realize really reason
reasonable recent recently record reddit refer regard regime regular relate relation relative relatively relevant
reliable reliably remain remark remember remove repeat replace reply report reproduce republish require research
researcher resource respect rest result return review rise risk rough roughly round rule run safe sanity save say
scenario scale school science scientist score section see seem seen sense sentence separate serious seriously serve set
setting settings setup shape share short shorter show shown side sign signal significant similar simple simply
simultaneously situation size skeptical slack slight slow slower slowly small smaller smart smooth solid solution solve
sort source speak special specific speed spend split spread standard start startup state statement statistic statistical
status stay steady step stick stop story straight strange strategy strength stress strict strong stronger struggle
student stuff subject substantial succeed success successful sudden sufficient suggestion sum summary super support
suppose supposed sure surely surprise surprising suspect switch take talk target team teammate technique tend term text
theory thing think thought thread tight time times tiny today together tomorrow tonight took top topic total tough track
tradition transition treat trend tried trick trouble true trust truth turn tweet twitter type typical ultimate unclear
understandable university unit unknown unsure upper usage use used user usual usually value variable variant variance
various verify version view visible vital wait want warn waste watch way weak week weeks weekend weigh whenever wide
widely widespread wild win winner wise wish wonder word words world worry wrap write wrong year years yesterday yield
young assistant supervisor advisor reviewer colleague blog article author authors arxiv preprint section table appendix
website documentation docs tutorial lecture class course homework thesis deadline conference workshop talk slide
""")

FIELD_WORDS = word_set("""
rl rlhf rlvr llm llms lm lms ai ml nlp slm slms model models policy policies agent agents agentic train training trained
trainer learner learning learn reinforcement fine-tuning finetuning finetune fine-tune post-training posttraining
optimizer optimiser optimization optimisation hyperparameter hyperparameters parameter parameters hyper-parameter
gradient gradients update updates loss losses objective reward rewards return returns advantage advantages baseline
score scores accuracy accuracies success pass performance metric metrics evaluation eval held-out heldout validation
test generalization generalisation generalize generalise overfit overfitting overfits converge convergence converges
sample samples sampling sampled sample-efficiency sample-efficient sampler rollout rollouts episode episodes trajectory
trajectories completion completions response responses answer answers output outputs generation generations prompt
prompts question questions task tasks environment environments env envs problem problems step steps iteration iterations
token tokens sequence sequences group groups batch batches minibatch minibatches seed seeds run runs arm arms study
studies gpu gpus cpu cpus compute hardware budget server servers weight weights checkpoint base network neural
exploration explore exploitation exploit diversity variance bias on-policy off-policy onpolicy curve curves plateau
on-policyness efficiency efficient throughput wall-clock wallclock setting settings configuration config configurations
language verifiable verifier verifiers multi-turn multiturn turn turns single-turn singleturn tool tools conversation
conversations dialogue dialog policy-gradient algorithm algorithms method methods estimator estimators penalty
regularization regularisation regularizer regularizers regularizing entropy clip clipping clipped ratio ratios range
coefficient coefficients schedule-free from-scratch starting-point small-scale toy signal supervision long-run
nan inf chatgpt openai github huggingface arxiv pytorch trl vllm verl deepmind youtube linkedin reddit macbook
bundled game games skill skills letter letters digit digits number numbers string strings word words
""")
"""They name what every study has, so that they choose nothing."""

_ENDINGS = (
    "'s", "s'", "n't", "ers", "er", "est", "ies", "ied", "es", "s", "ings", "ing", "ed", "d", "ly", "ally",
)  # fmt: skip
_MANNER = re.compile(r".{3,}(?:ly|wise|ful|less|able|ible|ous|ish|ically|lessly)$")
"""Adverbs and adjectives by their endings: they say how, never what."""

_KNOWN = QUESTION_WORDS | FUNCTION_WORDS | NUMERALS | ORDINARY | FIELD_WORDS


def is_ordinary(word: str) -> bool:
    """Whether a word, or every part of one with hyphens, asks for nothing that a study would have to do."""
    plain = word.lower().replace("’", "'").strip(".'-_")
    if not plain or plain in _KNOWN or _MANNER.fullmatch(plain):
        return True
    if "-" in plain:
        return all(is_ordinary(part) for part in plain.split("-"))
    return any(stem in _KNOWN for stem in _stems(plain))


def _stems(word: str) -> list[str]:
    """The words that an ending of English may have made this one of."""
    found: list[str] = []
    for ending in _ENDINGS:
        if not word.endswith(ending) or len(word) - len(ending) < 2:
            continue
        stem = word[: -len(ending)]
        found += [stem, f"{stem}e"]
        if ending.startswith("i"):
            found.append(f"{stem}y")
        if len(stem) > 2 and stem[-1] == stem[-2]:
            found.append(stem[:-1])
        if stem.endswith("i"):
            found.append(f"{stem[:-1]}y")
    return found
