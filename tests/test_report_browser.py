"""The page in a real browser: what it predicts is what Python predicts, and every control does what it says."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

import whence
from browser import at_rest, launched, opened, shown_prediction, until, watch
from whence.display.report import collect, write_page
from whence.display.report.export import exported
from whence.surrogates.averaged import AveragedSurrogate
from whence.surrogates.components import ComponentsSurrogate
from whence.surrogates.fit import CANDIDATES
from whence.surrogates.rank_fused import fusion_candidates
from whence.surrogates.trust import trust_in_estimates

pytestmark = pytest.mark.slow

TASKS = ["code", "math", "law", "news", "chat", "wiki"]
NASTY = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "\"q\" & 'q'", "<!--", "数学 ü", "${x}`"]
PREDICT = """async ([target, subsets]) => {
  const surrogate = page.explorer.surrogate(target);
  await surrogate.prepare();
  const at = subsets.map((subset) => surrogate.at(Float64Array.from(subset)));
  return [at.map((one) => surrogate.mean(one)), at.map((one) => surrogate.std(one))];
}"""

MOVED = """() => {
  const surrogate = page.explorer.surrogate(1);
  let moved = surrogate.at(new Float64Array(6));
  for (const k of [3, 0, 5, 0, 2]) moved = surrogate.moved(moved, k, 1 - moved.subset[k]);
  return surrogate.mean(moved) - surrogate.mean(surrogate.at(moved.subset));
}"""


@pytest.fixture(scope="module")
def browser():
    with launched() as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


def table(seed, n_runs, n_tasks, n_targets=1, *, weights=False, names=None, gaps=False, size=None):
    """Runs with main effects, one interaction and noise; the last few are replicates of the first."""
    rng = np.random.default_rng(seed)
    S = rng.dirichlet(np.ones(n_tasks), n_runs) if weights else (rng.random((n_runs, n_tasks)) < 0.5).astype(float)
    if size is not None:
        S = (rng.random((n_runs, n_tasks)).argsort(1) < size).astype(float)
    S[-4:] = S[:4]
    Y = (
        S @ rng.normal(size=(n_tasks, n_targets))
        + 2 * S[:, [0]] * S[:, [1]]
        + 0.1 * rng.normal(size=(n_runs, n_targets))
    )
    if gaps:
        Y[rng.random(Y.shape) < 0.1] = np.nan
    return whence.Outcomes(S, np.exp(Y / 3), names, [f"loss {t}" for t in range(n_targets)], maximize=["loss 0"])


@pytest.fixture(scope="module")
def plain(folder):
    """One target, 0/1 tasks, subsets of 2 to 4 of 6 tasks, news in every run."""
    S = whence.Exhaustive().draw(6)
    S = S[(S.sum(1) >= 2) & (S.sum(1) <= 4) & (S[:, 3] == 1)]
    rng = np.random.default_rng(0)
    S = np.vstack([S, S[:5]])
    loss = 3 - S[:, 0] - 0.8 * S[:, 1] + 0.7 * S[:, 0] * S[:, 1] + 0.6 * S[:, 2] + 0.02 * rng.normal(size=len(S))
    with pytest.warns(whence.DataWarning, match="news"):
        model = whence.fit(whence.Outcomes(S, loss, TASKS, ["loss"]))
    whence.report(model, folder / "plain.html")
    return model, folder / "plain.html"


@pytest.fixture(scope="module")
def several(folder):
    """Three targets with gaps, so that each has a surrogate of its own."""
    model = whence.fit(table(1, 70, 6, 3, names=TASKS), surrogate=whence.CombinedSurrogate())
    whence.report(model, folder / "several.html")
    return model, folder / "several.html"


@pytest.fixture(scope="module")
def mixture(folder):
    model = whence.fit(table(2, 60, 4, weights=True, names=TASKS[:4]))
    whence.report(model, folder / "mixture.html")
    return model, folder / "mixture.html"


# ---- predictions -----------------------------------------------------------------------------------------


def average(members=CANDIDATES, n_targets=2):
    weights = np.random.default_rng(6).dirichlet(np.ones(len(members)), n_targets).T
    return AveragedSurrogate(members, weights)


SURROGATES = {
    "combined": (whence.CombinedSurrogate(), {}),
    "combined on ranks": (whence.CombinedSurrogate("rank"), {}),
    "kernel ridge": (whence.KernelSurrogate(), {}),
    "paper": (whence.KernelSurrogate(settings="paper"), {}),
    "cubic": (whence.KernelSurrogate("poly", degree=3, coef0=1.0), {}),
    "ridge": (whence.AdditiveSurrogate(), {}),
    "fewer runs than tasks": (whence.AdditiveSurrogate(), {"n_runs": 14, "n_tasks": 20}),
    "ols": (whence.AdditiveSurrogate("ols"), {}),
    "lasso": (whence.AdditiveSurrogate("lasso"), {}),
    "average": (average(), {}),
    "average of weights": (average(), {"weights": True}),
    "components": (ComponentsSurrogate(), {}),
    "average with components of weights": (
        average({"kernel": whence.CombinedSurrogate(), "shared": ComponentsSurrogate()}),
        {"weights": True, "n_runs": 20},
    ),
    "gaps": (whence.CombinedSurrogate(), {"gaps": True}),
    "one size": (whence.CombinedSurrogate(), {"size": 3}),
    "one size, on ranks": (whence.CombinedSurrogate("rank"), {"size": 3}),
    "weights": (whence.CombinedSurrogate(weight_scale="identity"), {"weights": True}),
    "roots of weights": (whence.CombinedSurrogate("rank", weight_scale="sqrt"), {"weights": True}),
    "logarithms of weights": (whence.CombinedSurrogate(weight_scale="log"), {"weights": True}),
    "weights and logarithms": (whence.CombinedSurrogate(weight_scale="both"), {"weights": True}),
    "fifty tasks, five hundred runs": (whence.CombinedSurrogate(), {"n_runs": 500, "n_tasks": 50, "n_targets": 1}),
}


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
@pytest.mark.parametrize("name", SURROGATES)
def test_the_browser_predicts_what_python_predicts(name, browser, folder, monkeypatch):
    monkeypatch.setattr("whence.display.report.findings.CURVE_SPLITS", 1)
    surrogate, shape = SURROGATES[name]
    runs = table(3, **{"n_runs": 60, "n_tasks": 6, "n_targets": 2, **shape})
    model = whence.fit(runs, surrogate=surrogate, n_folds=2 if runs.n_tasks < 50 else None)
    path = folder / f"{name}.html"
    whence.report(model, path)
    rng = np.random.default_rng(4)
    K = runs.n_tasks
    asked = (rng.random((25, K)) < 0.5).astype(float) if runs.is_binary else rng.dirichlet(np.ones(K), 25)
    mean, std = model.predict(asked, return_std=True)
    with opened(browser, path) as page:
        for t in range(runs.n_targets):
            found = np.array(page.evaluate(PREDICT, [t, asked.tolist()]))
            np.testing.assert_allclose(found[0], mean[:, t], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found[1], std[:, t], rtol=1e-9, atol=1e-9)
    assert path.stat().st_size < 1_000_000


FUSIONS = {
    "additive estimates": (24, {"half": whence.AdditiveSurrogate()}),
    "kernel estimates": (24, {"half": whence.CombinedSurrogate()}),
    "estimates on ranks": (24, {"half": whence.CombinedSurrogate("rank")}),
    "two kinds of estimates": (24, {"half": whence.CombinedSurrogate(), "other": whence.AdditiveSurrogate("ols")}),
    "averages of estimates": (24, {"half": average()}),
    "estimates and too few runs for a kernel": (3, {"half": average()}),
}


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
@pytest.mark.parametrize("name", FUSIONS)
def test_the_browser_fuses_as_python_does(name, browser, folder, monkeypatch):
    monkeypatch.setattr("whence.display.report.findings.CURVE_SPLITS", 1)
    n_runs, learned_by = FUSIONS[name]
    cheap = table(3, 60, 6, 2, names=TASKS)
    rng = np.random.default_rng(5)
    truth = whence.Outcomes(
        cheap.subsets[:n_runs],
        2 * cheap.values[:n_runs] + cheap.subsets[:n_runs, [0]] + 0.05 * rng.normal(size=(n_runs, 2)),
        TASKS,
        cheap.target_names,
    )
    estimates = {key: whence.fit(cheap, surrogate=surrogate, n_folds=2) for key, surrogate in learned_by.items()}
    model = whence.fit(truth, estimates=estimates)
    document, path = collect(model), folder / "fused.html"
    write_page(document, path)
    with opened(browser, path) as page:
        assert page.locator("#trust-intro").inner_text().endswith(trust_in_estimates(model))
        assert "with estimates: half (60 subsets)" in page.locator("header, main").all_inner_texts()[-1]
    (part,) = model.parts
    every = average({**fusion_candidates(model.rungs, part.targets), **CANDIDATES}).fit(truth.subsets, truth.values)
    asked = whence.Exhaustive().draw(6)[::3]
    kinds = {"as fitted": part.surrogate, "average": every, **every.members_}
    for kind in ("as fitted", "average", "fused", "fused on ranks", "estimates"):
        one = replace(model, parts=(replace(part, surrogate=kinds[kind]),))
        write_page(document | {"surrogates": exported(one)}, path)
        mean, std = one.predict_quietly(asked, return_std=True)
        with opened(browser, path) as page:
            for t in range(2):
                found = np.array(page.evaluate(PREDICT, [t, asked.tolist()]))
                np.testing.assert_allclose(found[0], mean[:, t], rtol=1e-9, atol=1e-9, err_msg=kind)
                np.testing.assert_allclose(found[1], std[:, t], rtol=1e-9, atol=1e-9, err_msg=kind)
            assert abs(page.evaluate(MOVED)) < 1e-12


def test_intervals_from_a_sample_of_many_runs_are_no_narrower(browser, folder, monkeypatch):
    monkeypatch.setattr("whence.display.report.export.FACTORED_RUNS", 30)
    model = whence.fit(table(5, 80, 6), surrogate=whence.KernelSurrogate(), n_folds=2)
    whence.report(model, folder / "sampled.html")
    asked = whence.Exhaustive().draw(6)
    mean, std = model.predict(asked, return_std=True)
    with opened(browser, folder / "sampled.html") as page:
        found = np.array(page.evaluate(PREDICT, [0, asked.tolist()]))
    np.testing.assert_allclose(found[0], mean[:, 0], rtol=1e-9)
    assert (found[1] >= std[:, 0] * (1 - 1e-9)).all()
    assert np.median(found[1] / std[:, 0]) < 2


def test_moving_one_task_is_the_same_as_starting_there(browser, several):
    with opened(browser, several[1]) as page:
        assert abs(page.evaluate(MOVED)) < 1e-12


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
@pytest.mark.parametrize("size", [2, 5, 12])
def test_best_of_size_finds_what_select_finds(browser, folder, size):
    path = folder / "search.html"
    model = whence.fit(table(6, 60, 24), surrogate=whence.CombinedSurrogate(), n_folds=None)
    if not path.exists():
        whence.report(model, path)
    with opened(browser, path) as page:
        page.fill("#size", str(size))
        page.click("#best")
        until(page, "document.querySelector('#said').textContent.startsWith('The best')")
        assert len(page.query_selector_all(".chip input:checked")) == size
        found = shown_prediction(page)[0]
    best = whence.select(model, size=size).value
    assert found >= best - 1e-9 * abs(best)


# ---- controls --------------------------------------------------------------------------------------------


def checked(page):
    return {chip.inner_text().split("\n")[0] for chip in page.query_selector_all(".chip:has(input:checked) .name")}


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_buttons_set_the_subset_and_the_address_keeps_it(browser, plain):
    model, path = plain
    with opened(browser, path) as page:
        recommended = checked(page)
        page.click("#all")
        assert checked(page) == set(TASKS)
        page.click("#none")
        assert checked(page) == set()
        page.click("#invert")
        assert checked(page) == set(TASKS)
        page.click(".chip:has-text('law')")
        assert checked(page) == set(TASKS) - {"law"}
        at_rest(page)
        expected = model.predict([sorted(set(TASKS) - {"law"}, key=TASKS.index)], return_std=True)
        np.testing.assert_allclose(shown_prediction(page), np.ravel(expected), rtol=1e-9)
        fragment = page.evaluate("location.hash")
        page.click("#recommended")
        assert checked(page) == recommended
    with opened(browser, path, fragment) as page:
        assert checked(page) == set(TASKS) - {"law"}
        page.evaluate("location.hash = '#whatif;tasks=fc'")
        until(page, "document.querySelectorAll('.chip input:checked').length === 6")
        page.evaluate("location.hash = '#whatif;tasks=nonsense'")
        until(page, f"document.querySelectorAll('.chip input:checked').length === {len(TASKS)}")
        assert checked(page) == set(TASKS)


def test_the_address_of_a_what_if_is_copied(browser, plain):
    with opened(browser, plain[1], permissions=["clipboard-read", "clipboard-write"]) as page:
        page.click("#none")
        watch(page, "#share")
        page.click("#share")
        until(page, "seen.includes('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == page.url
        assert page.url.endswith("#whatif;tasks=00")


def test_leaving_the_runs_is_said(browser, plain):
    with opened(browser, plain[1]) as page:
        assert page.query_selector_all(".result .warning") == []
        page.click("#all")
        assert "No run had more than 4 tasks" in page.inner_text(".result .warning")
        page.click("#none")
        warnings = " ".join(one.inner_text() for one in page.query_selector_all(".result .warning"))
        assert "No run was without news" in warnings
        assert "No run had fewer than 2 tasks" in warnings


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_the_number_beside_a_task_is_what_switching_it_changes(browser, plain):
    model, path = plain
    with opened(browser, path, "#whatif;tasks=90") as page:  # code and news
        assert checked(page) == {"code", "news"}
        shown = page.inner_text(".chip:has-text('math') .delta").replace("−", "-")
    before, after = model.predict([["code", "news"], ["code", "math", "news"]])[:, 0]
    assert float(shown) == pytest.approx(after - before, abs=0.006)


def test_sorting_searching_and_the_profile_of_a_task(browser, plain):
    model, path = plain
    scores = whence.attribute(model).to_frame()
    with opened(browser, path) as page:
        names = [cell.inner_text() for cell in page.query_selector_all("#task-table td.name")]
        assert names == scores["task"].tolist()
        page.click("th button[data-sort=task]")
        names = [cell.inner_text() for cell in page.query_selector_all("#task-table td.name")]
        assert names == sorted(TASKS)
        assert page.get_attribute("th:has(button[data-sort=task])", "aria-sort") == "ascending"
        page.click("th button[data-sort=task]")
        assert page.get_attribute("th:has(button[data-sort=task])", "aria-sort") == "descending"
        page.fill("#task-query", "CO")
        assert [cell.inner_text() for cell in page.query_selector_all("#task-table td.name")] == ["code"]
        page.fill("#task-query", "nothing like it")
        assert page.inner_text("#task-more") == "No task has that name."
        page.fill("#task-query", "")
        page.click("#task-table button.link:has-text('law')")
        assert page.inner_text("#profile-title") == "law"
        assert "hurts" in page.inner_text("#profile p")
        assert "Strongest partners" in page.inner_text("#profile")
        assert "without" in page.text_content("#profile svg")
        before = "law" in checked(page)
        page.click("#profile-toggle")
        assert ("law" in checked(page)) != before
        page.click("#task-table button.link:has-text('math')")
        page.keyboard.press("Escape")
        assert not page.is_visible("#profile")


def test_everything_works_by_keyboard(browser, plain):
    with opened(browser, plain[1]) as page:
        page.focus(".chip:has-text('law') input")
        before = "law" in checked(page)
        page.keyboard.press("Space")
        assert ("law" in checked(page)) != before
        page.focus("#task-table button.link >> nth=0")
        page.keyboard.press("Enter")
        assert page.is_visible("#profile")
        page.keyboard.press("Tab")
        page.focus("#profile-close")
        page.keyboard.press("Enter")
        assert not page.is_visible("#profile")
        nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, select")].filter((control) =>
          !(control.textContent.trim() || control.getAttribute("aria-label") || control.closest("label"))).length""")
        assert nameless == 0
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
        assert len(ids) == len(set(ids))
        assert page.evaluate("[...document.querySelectorAll('svg[role=img]')].every((one) => one.ariaLabel)")


def test_links_scroll_and_leave_the_what_if_alone(browser, plain):
    with opened(browser, plain[1]) as page:
        page.click("#none")
        for section in ("whatif", "tasks", "pairs", "trust", "next", "answer"):
            page.click(f"nav a[href='#{section}']")
            assert page.evaluate("document.activeElement.id") == section
        assert page.url.endswith("tasks=00")


def test_tips_show_numbers(browser, plain):
    with opened(browser, plain[1]) as page:
        cell = page.locator("#matrix rect.cell").first
        cell.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        cell.hover()
        until(page, r"/\w+ \+ \w+\n[+−]\d/.test(document.querySelector('#tip').innerText)")
        cell.click()
        assert page.is_visible("#profile")


def test_a_held_out_run_can_be_explored(browser, plain):
    model, path = plain
    with opened(browser, path) as page:
        tip = page.get_attribute("#scatter circle >> nth=0", "data-tip")
        run = int(re.match(r"run (\d+)", tip)[1]) - 1
        page.locator("#scatter circle").first.dispatch_event("click")
        assert checked(page) == set(model.outcomes.names_of(model.outcomes.subsets[run]))


def test_suggested_runs_are_a_file_of_runs(browser, several, tmp_path):
    model, path = several
    with opened(browser, path, permissions=["clipboard-read", "clipboard-write"]) as page:
        with page.expect_download() as waiting:
            page.click("#download-csv")
        waiting.value.save_as(tmp_path / "next.csv")
        watch(page, "#copy-csv")
        page.click("#copy-csv")
        until(page, "seen.includes('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == (tmp_path / "next.csv").read_text()
        rows = len(page.query_selector_all("#next-table tbody tr"))
    runs = whence.read_outcomes(tmp_path / "next.csv", list(model.target_names))
    assert runs.task_names == model.task_names
    np.testing.assert_array_equal(runs.subsets, whence.suggest(model, rows).subsets)
    assert np.isnan(runs.values).all()


# ---- targets, weights, names, sizes ----------------------------------------------------------------------


def test_targets_can_be_chosen_in_the_list_and_in_the_map(browser, several):
    model, path = several
    with opened(browser, path) as page:
        page.select_option("#target", label="loss 2")
        at_rest(page)
        assert "expected loss 2" in page.inner_text("#lead")
        assert "target=loss%202" in page.url
        assert "loss 2" in page.inner_text("#tasks-intro")
        subset = page.evaluate("Array.from(page.state.subset)")
        mean, std = model.predict(np.array([subset]), return_std=True)
        np.testing.assert_allclose(shown_prediction(page), [mean[0, 2], std[0, 2]], rtol=1e-9)
        page.locator("#heat rect.cell").nth(1).dispatch_event("click")  # the first task on the second target
        assert page.input_value("#target") == "1"
        assert page.is_visible("#profile")
        page.click("#profile-close")
        fragment = page.evaluate("location.hash")
    with opened(browser, path, fragment) as page:
        assert page.input_value("#target") == "1"


def test_weights_keep_their_total(browser, mixture):
    model, path = mixture
    with opened(browser, path) as page:
        for button in ("#average", "#best-run", "#recommended"):
            page.click(button)
            assert page.evaluate("page.state.subset.reduce((a, b) => a + b)") == pytest.approx(1, abs=1e-6)
        page.click("#average")
        page.fill(".weight:has-text('law') input[type=number]", "0.4")
        weights = np.array(page.evaluate("Array.from(page.state.subset)"))
        at_rest(page)
        assert weights[2] == 0.4
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(
            shown_prediction(page), np.ravel(model.predict(weights[None], return_std=True)), rtol=1e-9
        )
        fragment = page.evaluate("location.hash")
        page.fill(".weight:has-text('law') input[type=number]", "0.99")
        assert "No run had as much law" in page.inner_text(".result .warning")
        assert "Shift interactions" in page.inner_text("#pairs-intro")
        page.click("#task-table button.link >> nth=0")
        assert page.is_visible("#profile svg")
    with opened(browser, path, fragment) as page:
        np.testing.assert_allclose(page.evaluate("Array.from(page.state.subset)"), weights, rtol=1e-5)


def sliders(page, wanted):
    """Drag every slider to a share of its range, one after the other; the weights after each."""
    for place in range(page.locator(".weight").count()):
        page.locator(".weight input[type=range]").nth(place).evaluate(
            """(input, share) => {
              input.value = Number(input.min) + share * (Number(input.max) - Number(input.min));
              input.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            wanted,
        )
        yield np.array(page.evaluate("Array.from(page.state.subset)"))


def test_sliders_share_the_budget_of_rounded_percents(browser, folder):
    S = (100 * np.random.default_rng(0).dirichlet(np.ones(4), 40)).round(1)
    assert np.ptp(S.sum(1)) > 0.05
    runs = whence.Outcomes(S, S @ np.array([1.0, 0.5, -1.0, 0.0]), TASKS[:4], ["reward"], True)
    model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=None)
    whence.report(model, folder / "percents.html")
    with opened(browser, folder / "percents.html") as page:
        assert "the total stays 1" in page.inner_text("#delta-note")
        for share in (0.9, 0.4, 1.0, 0.0):
            for weights in sliders(page, share):
                assert weights.sum() == pytest.approx(1)
                assert weights.min() >= 0
        page.fill(".weight:has-text('law') input[type=number]", "2.5")
        assert page.evaluate("Array.from(page.state.subset)") == [0, 0, 1, 0]
    with opened(browser, folder / "percents.html", "#whatif;weights=1,0.5,0.5,0.22") as page:
        assert page.evaluate("page.state.subset.reduce((a, b) => a + b)") == pytest.approx(1)


def test_free_weights_stay_within_the_runs(browser, folder):
    S = np.random.default_rng(1).random((40, 4)) + 0.2
    model = whence.fit(whence.Outcomes(S, S.sum(1)), surrogate=whence.AdditiveSurrogate(), n_folds=None)
    whence.report(model, folder / "free.html")
    with opened(browser, folder / "free.html") as page:
        for share in (1.0, 0.0):
            for weights in sliders(page, share):
                assert S.sum(1).min() - 1e-9 <= weights.sum() <= S.sum(1).max() + 1e-9


def test_names_of_a_map_are_whole_and_break_between_words(browser, folder):
    names = [f"a-rather-long/name_of.a source number {k}" for k in range(12)]
    S = (np.random.default_rng(2).random((40, 12)) < 0.5).astype(float)
    targets = ["first target", "a_target_with_a_rather_long_name", "third"]  # the longest one is not the last
    runs = whence.Outcomes(S, S @ np.random.default_rng(3).normal(size=(12, 3)), names, targets)
    whence.report(whence.fit(runs, surrogate=whence.KernelSurrogate(), n_folds=None), folder / "long.html")
    for width in (360, 1200):
        with opened(browser, folder / "long.html", width=width) as page:
            for picture in ("#heat", "#matrix"):
                texts = page.evaluate(
                    """(picture) => { const box = document.querySelector(`${picture} svg`).getBoundingClientRect();
                      return [...document.querySelectorAll(`${picture} text`)].map((text) => {
                        const own = text.getBoundingClientRect();
                        return [text.textContent, own.left >= box.left - 1 && own.top >= box.top - 1
                          && own.right <= box.right + 1];
                      }); }""",
                    picture,
                )
                assert set(names) <= {text for text, _ in texts}
                assert all(inside for _, inside in texts)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator(".chip .name wbr").count() == 12 * 5
            assert page.locator(".chip .name").first.inner_text() in names
            whole = "[...document.querySelectorAll('#summary .whole')].map((one) => one.getClientRects().length)"
            assert set(page.evaluate(whole)) == {1}  # lists are broken between names


def test_the_answer_of_every_target_is_in_one_table(browser, several):
    with opened(browser, several[1]) as page:
        rows = page.locator("#summary-table tbody tr")
        assert rows.count() == 3
        rows.nth(2).locator("button").click()
        at_rest(page)
        assert page.input_value("#target") == "2"
        assert "chosen" in rows.nth(2).get_attribute("class")


def test_names_are_never_markup(browser, folder):
    S = whence.Exhaustive().draw(6, 40, seed=1)
    source = {"source": "</title><script>alert(3)</script>.csv"}
    runs = whence.Outcomes(S, S[:, 0] - S[:, 1], NASTY, ["</script><b>loss</b>"], provenance=source)
    whence.report(whence.fit(runs, surrogate=whence.AdditiveSurrogate(), n_folds=2), folder / "nasty.html")
    with opened(browser, folder / "nasty.html") as page:
        assert {one.inner_text() for one in page.query_selector_all("#task-table td.name")} == set(NASTY)
        assert "</script><b>loss</b>" in page.inner_text("h1")
        assert page.query_selector("b:text-is('loss')") is None
        assert page.query_selector("img") is None
        for name in NASTY:
            page.locator("#task-table button.link").filter(has_text=name).first.click()
            assert page.inner_text("#profile-title") == name
            page.click("#profile-close")


def test_a_surrogate_that_cannot_travel_leaves_the_rest_of_the_page(browser, folder):
    forest = RandomForestRegressor(5, random_state=0)
    whence.report(whence.fit(table(7, 30, 4), surrogate=forest, n_folds=2), folder / "forest.html")
    with opened(browser, folder / "forest.html") as page:
        assert "cannot compute predictions" in page.inner_text(".result")
        page.click("#best")
        page.click("#all")
        assert len(page.query_selector_all("#scatter circle")) == 30
        assert "has no posterior covariance" in page.inner_text("#next-intro")


def test_doubt_comes_before_an_answer_that_the_runs_do_not_support(browser, folder):
    rng = np.random.default_rng(1)
    S = (rng.random((40, 5)) < 0.5).astype(float)
    runs = whence.Outcomes(S, rng.normal(size=40), target_names=["loss"])
    whence.report(whence.fit(runs, surrogate=whence.AdditiveSurrogate()), folder / "noise.html")
    with opened(browser, folder / "noise.html") as page:
        assert page.inner_text("#lead > :first-child").startswith("Too weak to act on")
        assert page.get_attribute("#lead > :first-child", "class") == "warning"


@pytest.mark.filterwarnings("ignore::whence.errors.DataWarning")
def test_hundreds_of_tasks_are_searched_and_cut(browser, folder):
    rng = np.random.default_rng(0)
    S = (rng.random((120, 300)) < 0.5).astype(float)
    runs = whence.Outcomes(S, S @ rng.normal(size=300), target_names=["loss"])
    with pytest.warns(whence.DataWarning, match="fewer subsets than tasks"):
        model = whence.fit(runs, surrogate=whence.AdditiveSurrogate(alpha=10.0), n_folds=2)
    whence.report(model, folder / "many.html")
    with opened(browser, folder / "many.html") as page:
        assert len(page.query_selector_all("#task-table tbody tr")) == 41
        page.click("#task-all")
        assert len(page.query_selector_all("#task-table tbody tr")) == 300
        page.fill("#chip-query", "task_299")
        assert len([chip for chip in page.query_selector_all(".chip") if chip.is_visible()]) == 1
        page.fill("#size", "150")
        page.click("#best")
        until(page, "document.querySelector('#said').textContent.startsWith('The best')")
        assert shown_prediction(page)[0] == pytest.approx(whence.select(model, size=150).value, rel=1e-9)
    assert (folder / "many.html").stat().st_size < 4_000_000


# ---- looks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["plain", "several", "mixture"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(browser, request, which, width):
    with opened(browser, request.getfixturevalue(which)[1], width=width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "[object" not in page.inner_text("body")
        assert "NaN" not in page.inner_text("body")
        assert "undefined" not in page.inner_text("body")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(browser, plain, scheme):
    """Contrast of at least 4.5, as the accessibility guidelines ask for text."""
    with opened(browser, plain[1], color_scheme=scheme) as page:
        colours = page.evaluate("""() => {
          const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
          const probe = document.createElement("span");
          document.body.append(probe);
          return Object.fromEntries(["ink", "soft", "good", "bad", "accent", "paper", "card"].map((name) => {
            probe.style.color = `var(--${name})`;
            canvas.fillStyle = getComputedStyle(probe).color;
            canvas.fillRect(0, 0, 1, 1);
            return [name, Array.from(canvas.getImageData(0, 0, 1, 1).data.slice(0, 3))];
          }));
        }""")
    light = {name: luminance(colour) for name, colour in colours.items()}
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "good", "bad", "accent"):
            low, high = sorted([light[ground], light[text]])
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def luminance(colour):
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))


def test_the_theme_can_be_switched(browser, plain):
    with opened(browser, plain[1], color_scheme="light") as page:
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_it_prints_its_answers_and_no_controls(browser, plain):
    with opened(browser, plain[1]) as page:
        page.emulate_media(media="print")
        assert not page.is_visible("#best")
        assert not page.is_visible("nav")
        assert page.is_visible("#lead")
        assert page.is_visible("#task-table")
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_without_scripts_the_answer_is_still_there(browser, plain):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{plain[1]}")
    assert "Use " in page.inner_text("#lead")
    assert "needs JavaScript" in page.inner_text("noscript")
    context.close()
