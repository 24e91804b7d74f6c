"""Surrogates: scikit-learn regressors from subsets to outcomes, and the choice between them."""
