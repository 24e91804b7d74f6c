"""In-context learning: which demonstrations help a prompted language model, which clash, and which prompt to use.

Tasks are candidate demonstrations, a subset is a prompt, and its outcome is what the model says of labelled queries.
The flow, and where each step lives::

    prompts.py     template (also of a chat), demonstrations, queries: as text, and as tokens for every other part
    language.py    a causal language model: logits of label words, from tokens or from embeddings
    outcomes.py    what both outcome functions share, and Prompted, the true one: every prompt is run
    estimate.py    AnchoredPrompts: one forward and backward pass per query, then a look-up per prompt
    order.py       a surrogate of (subset, order), and the best order
    choice.py      demonstrations for a query; the chosen prompt compared with what it has to beat
    doubts.py      demonstrations whose label the model would not give
    recommend.py   all of it in one call: the prompt to use, and the evidence for it

Both outcome functions work with `whence.measure` and, through it, with everything else: fit, attribute, select, report.
"""

from whence.icl.choice import Judged, explain, judge, nearest, sentence_vectors
from whence.icl.doubts import Doubts, doubts
from whence.icl.estimate import AnchoredPrompts
from whence.icl.examples import read_examples
from whence.icl.language import LanguageModel, import_transformers
from whence.icl.order import OrderSurrogate, best_order
from whence.icl.outcomes import Prompted
from whence.icl.prompts import Example, Prompts, Template, chat_template
from whence.icl.recommend import Recommendation, recommend

__all__ = [
    "AnchoredPrompts",
    "Doubts",
    "Example",
    "Judged",
    "LanguageModel",
    "OrderSurrogate",
    "Prompted",
    "Prompts",
    "Recommendation",
    "Template",
    "best_order",
    "chat_template",
    "doubts",
    "explain",
    "import_transformers",
    "judge",
    "nearest",
    "read_examples",
    "recommend",
    "sentence_vectors",
]
