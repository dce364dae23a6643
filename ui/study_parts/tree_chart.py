"""The tree of experiments as an Altair chart, which tells of clicks on its arms."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ui import charts

ROW_HEIGHT = 42
LEGEND_HEIGHT = 70
SIZE = 170
CLICKED = "clicked"
"""The name of the selection in a tree."""
_NODE_TIPS = (
    ("arm", "Arm"),
    ("operator", "How"),
    ("purpose", "What for"),
    ("plan", "Plan"),
    ("said", "Exploring score"),
    ("reached", "Reached"),
    ("out", "Out because"),
)


def draw_tree(nodes: pd.DataFrame, edges: pd.DataFrame, *, is_minimized: bool) -> charts.Chart:
    """Draw the tree of experiments; a click selects an arm under the name `CLICKED`.

    `nodes`: arm, id, x, y, score, said, scored, reached, state, operator, purpose, out, plan. `edges`: x, y, x2, y2,
    kind, operator; `kind` is 0 for the first parent of an arm.
    """
    columns, rows = max(nodes["x"].tolist()) + 1, max(nodes["y"].tolist()) + 1
    span = alt.Scale(domain=[-0.15, columns], nice=False)
    down = alt.Scale(domain=[rows - 0.4, -0.6], nice=False)
    x, y = alt.X("x:Q", scale=span, axis=None), alt.Y("y:Q", scale=down, axis=None)
    lines = (
        alt.Chart(edges)
        .mark_rule(color="gray", opacity=0.6)
        .encode(x=x, y=y, x2="x2:Q", y2="y2:Q", strokeDash=alt.StrokeDash("kind:N", legend=None))
    )
    ways = (
        alt.Chart(edges)
        .mark_text(align="right", dx=-14, dy=14, fontSize=10, color="gray")
        .encode(x=alt.X("x2:Q", scale=span, axis=None), y=alt.Y("y2:Q", scale=down, axis=None), text="operator:N")
    )
    clicked = alt.selection_point(name=CLICKED, fields=["id"])
    order = "descending" if is_minimized else "ascending"
    shapes = alt.Scale(domain=["in", "out", "confirmed"], range=["circle", "cross", "square"])
    shape = alt.Shape("state:N", scale=shapes, legend=None)
    color = alt.Color(
        "score:Q",
        scale=alt.Scale(scheme="viridis"),
        sort=order,
        legend=alt.Legend(title="exploring score", orient="bottom", format=charts.SCORE_FORMAT),
    )
    dots = (
        alt.Chart(charts.only(nodes, "scored", True))
        .mark_point(filled=True, stroke="gray", size=SIZE, opacity=1, strokeWidth=1)
        .encode(x=x, y=y, color=color, shape=shape)
    )
    hollow = (
        alt.Chart(charts.only(nodes, "scored", False))
        .mark_point(color="gray", size=SIZE, opacity=1, strokeWidth=1)
        .encode(x=x, y=y, shape=shape)
    )
    tips = [alt.Tooltip(f"{name}:N", title=title) for name, title in _NODE_TIPS]
    # Dots of both kinds are hovered and clicked through one layer, because a selection belongs to a single one.
    targets = (
        alt.Chart(nodes)
        .mark_point(filled=True, size=2 * SIZE, opacity=0)
        .encode(x=x, y=y, tooltip=tips)
        .add_params(clicked)
    )
    names = (
        alt.Chart(nodes)
        .mark_text(align="left", dx=12, dy=-8, fontSize=12, color="gray", limit=charts.LABEL_WIDTH)
        .encode(x=x, y=y, text="arm:N")
    )
    return alt.layer(lines, ways, hollow, dots, names, targets).properties(
        height=int(ROW_HEIGHT * rows) + LEGEND_HEIGHT, padding={"left": 4, "right": 8, "top": 4, "bottom": 4}
    )
