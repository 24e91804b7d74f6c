"""A model linearised once, f(W) ≈ f(W₀) + ∇f·(W − W₀), along a few directions: where every gradient method starts."""
