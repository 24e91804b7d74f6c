r"""Policies of any subset without training on it: estimated imitation losses of all, and real episodes of a few.

Each rung of the ladder gives parameters of a policy for any subset of tasks: GradEx at the policy trained on all tasks
(the paper's estimator) and along that training, merged task vectors (runs on single tasks, runs with all tasks in most
of their batches, runs that each leave a task out). Imitation losses on held-out demonstrations are estimated for all
subsets of cloning.py; policies of a few subsets of seven play real episodes, from the same starts as the true ones.
Runs that each leave a task out tell what subsets of a few tasks do only by going ten times as far as they went; what
they answer is added up instead of their weights, which is no policy that could play. At the joint policy, gradients of
the tasks are compared, and its linear model with policies that were really trained.
Needs demonstrations.npz of cloning.py under ``--out``, and the same sizes.

    python experiments/rl/policy_estimates.py --out run/rl              about a minute on an H200 and 16 cores
    python experiments/rl/policy_estimates.py --out run/rl --quick      half a minute on two cores

Written: rung_NAME.npz (subsets and losses (subset, task); rolled, returns and success (rolled subset, task, episode)),
joint.npz (cosines of the tasks' gradients (task, task); median first-order error of each trained policy; returns of the
experts) and policy_estimates.json, with the seconds that each rung took beside those of one true run.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from cloning import Cloning, arguments, demonstrations, design, quick_design, recipe, save, say, write_settings
from mt10 import TASKS, Rollouts

import whence
from whence.estimators.linearity import linearization_error
from whence.estimators.merged import Merged
from whence.gradients.groups import task_gradients
from whence.gradients.projections import flatten, split
from whence.models.points import points_of
from whence.models.problem import State
from whence.models.stack import unstacked

SIZES = {"rank": (512, 16), "rolled": (20, 1), "examples": (800, 50)}  # by default, and with --quick
FEW = 8  # trained policies that the linear model of the joint one is compared with


def main() -> None:
    given = arguments(SIZES)
    warnings.simplefilter("ignore", whence.DataWarning)
    began, seconds = time.time(), {}
    subsets, wanted = (quick_design if given.quick else design)()
    rolled = np.random.default_rng(0).permutation(np.flatnonzero(subsets.sum(1) == 7))[: given.rolled]
    sizes = {"episodes": given.episodes, "horizon": given.horizon, "width": given.width}
    with Rollouts(given.workers, **sizes) as rollouts:
        demos = demonstrations(given, rollouts)
        cloned = Cloning(demos, given.width, recipe(given), given.device)
        waiting = {}
        for name, make in RUNGS.items():
            path = given.out / f"rung_{name}.npz"
            if path.exists():
                continue
            since = time.time()
            rung = make(cloned, given)
            losses = np.stack(list(rung.batch(subsets).values()), axis=1)
            seconds[name] = time.time() - since
            say(began, f"{name}: mean imitation loss {losses.mean():.3f}, {seconds[name]:.1f} s")
            if getattr(rung, "merge", "weights") != "weights":
                save(path, subsets=subsets, losses=losses, task_names=TASKS)
                continue
            policies = cloned.policies(states(rung, subsets[rolled]))
            finish = rollouts.start(policies, wanted[rolled], given.out / f"policies_{name}.npy", seed=0, at_once=4)
            waiting[name] = path, losses, finish
        expert = demos["reward"].sum(2).mean(1)
        save(given.out / "joint.npz", expert=expert, **at_joint(cloned, subsets[rolled][:FEW]))
        say(began, "gradients and first-order errors at the joint policy")
        for name, (path, losses, finish) in waiting.items():
            returns, success = finish()
            save(
                path, subsets=subsets, losses=losses, rolled=rolled, returns=returns, success=success, task_names=TASKS
            )
            say(began, f"{name}: return {np.nanmean(returns):.0f}, success {np.nanmean(success):.2f}")
    since = time.time()
    cloned.train(np.ones((1, len(TASKS))), 0)
    write_settings(given, seconds | {"one true run": time.time() - since, "all": time.time() - began}, {})


def joint(cloned: Cloning, given) -> whence.GradEx:
    """GradEx at the policy trained on all tasks, along random directions."""
    features = whence.Features(examples=given.examples)
    return whence.GradEx(
        problem_at_joint(cloned), given.rank, projection="gaussian", weighting="task", features=features
    )


def problem_at_joint(cloned: Cloning) -> whence.Problem:
    """The problem at the policy trained on all tasks."""
    (state,) = unstacked(cloned.train(np.ones((1, len(TASKS))), 0))
    return cloned.problem.at(state)


def at_joint(cloned: Cloning, subsets: np.ndarray) -> dict[str, np.ndarray]:
    """Cosines of the tasks' gradients at the joint policy, and first-order errors of trained policies of subsets."""
    problem = problem_at_joint(cloned)
    gradients = torch.nn.functional.normalize(task_gradients(problem, points_of(problem, [])[0]))
    trained = unstacked(cloned.train(subsets, 0))
    errors = {
        f"error_of_{kind}": np.array(
            [np.median(linearization_error(problem, end, relative_to=kind)) for end in trained]
        )
        for kind in ("outputs", "change")
    }
    return {"cosines": (gradients @ gradients.T).cpu().numpy(), "subsets": subsets, **errors}


def along(cloned: Cloning, given) -> whence.GradEx:
    """GradEx along the training on all tasks."""
    features = whence.Features(examples=given.examples)
    return whence.GradEx.along(cloned.problem, cloned.recipe, rank=given.rank, features=features)


RUNGS = {
    "gradex_joint": joint,
    "gradex_along": along,
    "vectors": lambda cloned, _: whence.TaskVectors(cloned.problem, cloned.recipe),
    "vectors_background": lambda cloned, _: whence.TaskVectors(cloned.problem, cloned.recipe, background=0.75),
    "left_out": lambda cloned, _: whence.TaskVectors(cloned.problem, cloned.recipe, runs="left out", merge="outcomes"),
}


def states(rung: whence.GradEx | Merged, subsets: np.ndarray) -> State:
    """Parameters that a rung estimates for subsets, stacked; of GradEx the mean over the points it is linear at."""
    if isinstance(rung, Merged):
        return rung.states(subsets, rung.scale)
    found = []
    for (_, params), solution in zip(rung.points, rung.solutions(subsets), strict=True):
        directions = rung.projection(0)
        moved = solution.delta @ directions.rows(params, 0, directions.rank).to(solution.delta)
        # Updates of a GradEx along a run are measured from where the run starts, others from their own point.
        origin = rung.problem.start if "of a joint run" in rung.provenance["gradex"] else params
        found.append(flatten({name: origin[name][None] for name in params}) + moved)
    like = {name: rung.problem.start[name] for name in rung.problem.trained}
    return split(torch.stack(found).mean(0), like)


if __name__ == "__main__":
    main()
