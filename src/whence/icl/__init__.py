"""In-context learning: which demonstrations help a prompted language model, which clash, and which prompt to use.

Tasks are candidate demonstrations, a subset is a prompt, and its outcome is what the model says of labelled queries.
The flow, and where each step lives::

    prompts.py     template, demonstrations, queries: as text, and as tokens that every other part works with
    language.py    a causal language model: logits of label words, from tokens or from embeddings
    outcomes.py    what both outcome functions share: from subsets to ordered prompts, from margins to outcomes
    truth.py       Prompted: every prompt is run
    slots.py       demonstrations of different lengths, aligned
    estimate.py    AnchoredPrompts: one forward and backward pass per query, then a look-up per prompt
    order.py       a surrogate of (subset, order), and the best order
    choice.py      demonstrations for a query; the chosen prompt beside what it has to beat
    doubts.py      demonstrations whose label the model would not give
    chat.py        prompts as conversations
    recommend.py   all of it in one call: the prompt to use, and the evidence for it

Both outcome functions work with `whence.measure` and, through it, with everything else: fit, attribute, select, report.
"""

from whence.icl.chat import chat_template
from whence.icl.choice import Judged, explain, judge, nearest, sentence_vectors
from whence.icl.doubts import Doubts, doubts
from whence.icl.estimate import AnchoredPrompts
from whence.icl.examples import read_examples
from whence.icl.language import LanguageModel, import_transformers
from whence.icl.order import OrderSurrogate, best_order
from whence.icl.prompts import Example, Prompts, Template
from whence.icl.recommend import Recommendation, recommend
from whence.icl.truth import Prompted

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
