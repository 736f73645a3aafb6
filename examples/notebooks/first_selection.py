# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first selection on your own frame
#
# Several organisations hold different columns about the same people. Which of these
# columns does a joint model need? This notebook answers that for a pandas frame whose
# truth we know, because we make it up. Put your own frame in its place.
#
# It takes a minute. All parties are simulated in this process; nothing is sent
# anywhere.

# %%
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from lessvfl import LessVFLClassifier

# %% [markdown]
# ## The table
#
# 2,000 people: what a clinic, a laboratory, a maker of wearables and an insurer know
# of them. Numbers, texts and missing cells are fine as they are.

# %%
rng = np.random.default_rng(0)
n = 2000
frame = pd.DataFrame(
    {
        "age": rng.normal(52, 12, n).round(),
        "height": rng.normal(171, 9, n).round(),
        "smoker": rng.choice(["never", "former", "current"], n, p=[0.5, 0.3, 0.2]),
        "ldl": rng.normal(125, 30, n).round(),
        "glucose": rng.normal(98, 14, n).round(),
        "iron": rng.normal(95, 25, n).round(),
        "sodium": rng.normal(140, 2.5, n).round(1),
        "zinc": rng.normal(85, 12, n).round(),
        "steps": rng.normal(7500, 2500, n).clip(500).round(-2),
        "night_pulse": rng.normal(58, 7, n).round(),
        "sleep_hours": rng.normal(7, 1, n).round(1),
        "screen_hours": rng.normal(3.5, 1.2, n).clip(0).round(1),
        "plan": rng.choice(["basic", "family", "gold"], n),
        "claims": rng.poisson(1.2, n),
        "member_since": rng.integers(1985, 2024, n),
    }
)

# %% [markdown]
# The truth, which the model is not told: age, smoking, LDL, glucose, steps and claims
# matter. Night pulse and sleep matter only **together**: a high pulse is bad for
# those who sleep little and good for those who sleep long, so that neither says
# anything alone. All other columns are noise.

# %%
risk = (
    (frame["age"] - 52) / 12
    + 1.2 * (frame["smoker"] == "current")
    + 0.8 * (frame["ldl"] - 125) / 30
    + 0.7 * (frame["glucose"] - 98) / 14
    - 0.8 * (frame["steps"] - 7500) / 2500
    + 0.7 * (frame["claims"] - 1.2)
    - 0.6 * (frame["night_pulse"] - 58) / 7 * (frame["sleep_hours"] - 7)
)
label = np.where(risk + rng.logistic(0, 0.5, n) > 0.5, "ill", "well")
truth = {
    *("age", "smoker", "ldl", "glucose", "steps", "claims"),
    *("night_pulse", "sleep_hours"),
}
frame.loc[rng.random(n) < 0.05, "iron"] = np.nan  # not measured
X_train, X_test, y_train, y_test = train_test_split(
    frame, label, stratify=label, random_state=0
)
frame.head()

# %% [markdown]
# ## Who holds what
#
# A dict of party names and their columns: names, or globs such as `lab_*`.

# %%
parties = {
    "clinic": ["age", "height", "smoker"],
    "lab": ["ldl", "glucose", "iron", "sodium", "zinc"],
    "wearable": ["steps", "night_pulse", "sleep_hours", "screen_hours"],
    "insurer": ["plan", "claims", "member_since"],
}

# %% [markdown]
# ## Fit
#
# There is no penalty to choose: every party compares its columns with scrambled
# copies of them. `verbose=1` shows how far the fit is.

# %%
model = LessVFLClassifier(parties=parties, random_state=0, verbose=1)
model.fit(X_train, y_train)

# %% [markdown]
# ## What was kept, and why
#
# `selection_` has every feature. A strength of 1 is the mark: what scrambled columns
# reach by chance. `pair` names the feature that it matters together with.

# %%
table = pd.DataFrame(model.selection_)
table["true"] = table["feature"].isin(truth)
table.round(2)

# %%
found = set(table.loc[table["kept"], "feature"])
print("missed:", ", ".join(sorted(truth - found)) or "nothing")
print("kept for nothing:", ", ".join(sorted(found - truth)) or "nothing")

# %%
ax = model.plot_selection()

# %% [markdown]
# How a party decides: it lets lambda fall and more features come in, until too many
# scrambled columns would come in, too. The dot is where it stops; pairs are added
# after that.

# %%
ax = model.plot_path(party="lab")

# %% [markdown]
# ## What each party adds
#
# Beside the bars: the bytes a party would have sent and received, and the accuracy on
# the training rows if its part of the model were replaced by its mean.

# %%
ax = model.plot_parties()

# %% [markdown]
# ## Predict
#
# New rows need the kept columns alone. Beside the model that was fitted: one that
# learns from all columns, and one that learns from the kept columns as long as that
# one does. The default trains for few rounds with few bits, because between
# organisations bytes and rounds are what takes time; where they do not matter, train
# longer.

# %%
kept = frame.columns[model.get_support()]
models = {"selected": (model, frame.columns)}
for name, held, columns in (
    ("all columns", parties, frame.columns),
    ("kept, trained longer", model.features_, kept),
):
    plain = LessVFLClassifier(method="plain", parties=held, random_state=0)
    models[name] = (plain.fit(X_train[columns], y_train), columns)
pd.DataFrame(
    {
        name: {
            "columns": one.get_support().sum(),
            "test accuracy": round(one.score(X_test[columns], y_test), 3),
            "MB": sum(one.run_["communication"]["payload_bytes"].values()) / 1e6,
            "rounds": one.run_["communication"]["rounds"],
        }
        for name, (one, columns) in models.items()
    }
).T

# %%
pd.DataFrame(model.predict_proba(X_test.head(3)), columns=model.classes_).round(3)

# %% [markdown]
# ## How sure is it?
#
# One run is one draw of initial weights. `false_share_` estimates what share of the
# kept features is useless; a few more seeds show which features are always kept.

# %%
print(model.false_share_)
seeds = [
    LessVFLClassifier(parties=parties, train_epochs=5, random_state=seed)
    .fit(X_train, y_train)
    .support_
    for seed in range(1, 4)
]
pd.Series(np.mean([model.support_, *seeds], axis=0), frame.columns, name="kept in")

# %% [markdown]
# ## What to do next
#
# - Put your own frame in place of ours, and your parties' columns in `parties`.
# - Use it in a pipeline: it is a selector (`transform`, `get_support`) and a
#   predictor.
# - Between real organisations nobody has the whole frame. `lessvfl kit` makes the
#   files that each of them needs, and `lessvfl try` rehearses it on your machine.
# - The second notebook, *The paper in ten minutes*, explains what happened here.
