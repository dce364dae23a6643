"""Baseline: every table there is."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_leases()
    _create_studies()
    _create_charters()
    _create_iterations()
    _create_decisions()
    _create_hypotheses()
    _create_llm_calls()
    _create_experiments()
    _create_findings()
    _create_runs()
    _create_artifacts()
    _create_budget_entries()
    _create_episode_samples()
    _create_evaluations()
    _create_events()
    _create_metric_points()
    _create_notebook()
    _create_program_trials()
    _create_planner_questions()
    _create_reviews()


def _create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("token", BIG_INTEGER, nullable=False),
        sa.Column("ttl_s", sa.Float(precision=53), nullable=False),
        sa.Column("acquired_at", sa.Float(precision=53), nullable=False),
        sa.Column("heartbeat_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("resource", name=op.f("pk_leases")),
    )


def _create_studies() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("planner", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("digest", sa.JSON(), nullable=True),
        sa.Column("revision", BIG_INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index(op.f("ix_studies_created_at"), "studies", ["created_at"])


def _create_charters() -> None:
    op.create_table(
        "charters",
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("test_opened_at", sa.Float(precision=53), nullable=True),
        sa.Column("test_opened_for", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_charters_study_id_studies")),
        sa.PrimaryKeyConstraint("study_id", name=op.f("pk_charters")),
    )


def _create_iterations() -> None:
    op.create_table(
        "plans",
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("iteration", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("revision", BIG_INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_plans_study_id_studies")),
        sa.PrimaryKeyConstraint("study_id", "iteration", name=op.f("pk_plans")),
    )
    op.create_table(
        "analyses",
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("iteration", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_analyses_study_id_studies")),
        sa.PrimaryKeyConstraint("study_id", "iteration", name=op.f("pk_analyses")),
    )


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("iteration", BIG_INTEGER, nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("finding_ids", sa.JSON(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_decisions_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("study_id", "iteration", name=op.f("uq_decisions_study_id_iteration")),
    )


def _create_hypotheses() -> None:
    op.create_table(
        "hypotheses",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("iteration", BIG_INTEGER, nullable=False),
        sa.Column("parent_id", sa.String(length=32), nullable=True),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("rationale", sa.Text(), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=True),
        sa.Column("verdict_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["hypotheses.id"], name=op.f("fk_hypotheses_parent_id_hypotheses")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_hypotheses_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hypotheses")),
        sa.UniqueConstraint("study_id", "key", name=op.f("uq_hypotheses_study_id_key")),
    )


def _create_llm_calls() -> None:
    op.create_table(
        "llm_calls",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("attempt", BIG_INTEGER, nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("input_tokens", BIG_INTEGER, nullable=False),
        sa.Column("output_tokens", BIG_INTEGER, nullable=False),
        sa.Column("cost_usd", sa.Float(precision=53), nullable=False),
        sa.Column("latency_s", sa.Float(precision=53), nullable=False),
        sa.Column("prompt_hash", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_llm_calls_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_llm_calls")),
    )
    op.create_index(op.f("ix_llm_calls_study_id_id"), "llm_calls", ["study_id", "id"])


def _create_experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("hypothesis_id", sa.String(length=32), nullable=True),
        sa.Column("parent_id", sa.String(length=32), nullable=True),
        sa.Column("second_parent_id", sa.String(length=32), nullable=True),
        sa.Column("operator", sa.String(length=32), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("iteration", BIG_INTEGER, nullable=False),
        sa.Column("is_baseline", sa.Boolean(), nullable=False),
        sa.Column("factors", sa.JSON(), nullable=False),
        sa.Column("job", sa.JSON(), nullable=False),
        sa.Column("program_code", sa.Text(), nullable=False),
        sa.Column("train_environment", sa.Text(), nullable=True),
        sa.Column("author", sa.String(length=32), nullable=True),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("manipulation", sa.JSON(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("revision", BIG_INTEGER, nullable=False),
        sa.ForeignKeyConstraint(
            ["hypothesis_id"], ["hypotheses.id"], name=op.f("fk_experiments_hypothesis_id_hypotheses")
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["experiments.id"], name=op.f("fk_experiments_parent_id_experiments")),
        sa.ForeignKeyConstraint(
            ["second_parent_id"], ["experiments.id"], name=op.f("fk_experiments_second_parent_id_experiments")
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_experiments_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("study_id", "name", name=op.f("uq_experiments_study_id_name")),
    )
    op.create_index(op.f("ix_experiments_hypothesis_id"), "experiments", ["hypothesis_id"])
    op.create_index(op.f("ix_experiments_study_id_revision"), "experiments", ["study_id", "revision"])


def _create_findings() -> None:
    op.create_table(
        "findings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("comparison", sa.Text(), nullable=False),
        sa.Column("hypothesis_id", sa.String(length=32), nullable=True),
        sa.Column("iteration", BIG_INTEGER, nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("baseline_id", sa.String(length=32), nullable=True),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("effect", sa.Float(precision=53), nullable=True),
        sa.Column("ci_low", sa.Float(precision=53), nullable=True),
        sa.Column("ci_high", sa.Float(precision=53), nullable=True),
        sa.Column("confidence", sa.Float(precision=53), nullable=False),
        sa.Column("p_value", sa.Float(precision=53), nullable=True),
        sa.Column("p_adjusted", sa.Float(precision=53), nullable=True),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("run_ids", sa.JSON(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("retracted_at", sa.Float(precision=53), nullable=True),
        sa.Column("retraction", sa.Text(), nullable=True),
        sa.Column("retracted_by", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["retracted_by"], ["findings.id"], name=op.f("fk_findings_retracted_by_findings")),
        sa.ForeignKeyConstraint(["baseline_id"], ["experiments.id"], name=op.f("fk_findings_baseline_id_experiments")),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_findings_experiment_id_experiments")
        ),
        sa.ForeignKeyConstraint(
            ["hypothesis_id"], ["hypotheses.id"], name=op.f("fk_findings_hypothesis_id_hypotheses")
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_findings_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_findings")),
        sa.UniqueConstraint("study_id", "comparison", name=op.f("uq_findings_study_id_comparison")),
    )
    op.create_index(op.f("ix_findings_hypothesis_id"), "findings", ["hypothesis_id"])


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("seed", BIG_INTEGER, nullable=False),
        sa.Column("rung", BIG_INTEGER, nullable=False),
        sa.Column("attempt", BIG_INTEGER, nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("server_url", sa.Text(), nullable=True),
        sa.Column("external_ids", sa.JSON(), nullable=False),
        sa.Column("job", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("base_weight_version", BIG_INTEGER, nullable=True),
        sa.Column("final_weight_version", BIG_INTEGER, nullable=True),
        sa.Column("pid", BIG_INTEGER, nullable=True),
        sa.Column("log_path", sa.Text(), nullable=True),
        sa.Column("exit_reason", sa.Text(), nullable=True),
        sa.Column("diagnosis", sa.JSON(), nullable=True),
        sa.Column("training_cost", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("revision", BIG_INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name=op.f("fk_runs_experiment_id_experiments")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_runs_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint(
            "experiment_id", "seed", "rung", "attempt", name=op.f("uq_runs_experiment_id_seed_rung_attempt")
        ),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_runs_idempotency_key")),
    )
    op.create_index(op.f("ix_runs_study_id_created_at"), "runs", ["study_id", "created_at"])
    op.create_index(op.f("ix_runs_study_id_revision"), "runs", ["study_id", "revision"])


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", BIG_INTEGER, nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_artifacts_run_id_runs")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_artifacts_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("study_id", "path", name=op.f("uq_artifacts_study_id_path")),
    )
    op.create_index(op.f("ix_artifacts_run_id"), "artifacts", ["run_id"])


def _create_budget_entries() -> None:
    op.create_table(
        "budget_entries",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("amount", sa.Float(precision=53), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_budget_entries_run_id_runs")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_budget_entries_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_entries")),
        sa.UniqueConstraint("study_id", "kind", "key", name=op.f("uq_budget_entries_study_id_kind_key")),
    )


def _create_episode_samples() -> None:
    op.create_table(
        "episode_samples",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("step", BIG_INTEGER, nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("is_success", sa.Boolean(), nullable=True),
        sa.Column("advantage", sa.Float(precision=53), nullable=True),
        sa.Column("weight_version", BIG_INTEGER, nullable=True),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_episode_samples_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "episode_id", name=op.f("pk_episode_samples")),
    )


def _create_evaluations() -> None:
    op.create_table(
        "evaluations",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("weight_version", BIG_INTEGER, nullable=False),
        sa.Column("episodes", BIG_INTEGER, nullable=False),
        sa.Column("successes", BIG_INTEGER, nullable=False),
        sa.Column("mean", sa.Float(precision=53), nullable=False),
        sa.Column("stderr", sa.Float(precision=53), nullable=False),
        sa.Column("evaluator_hash", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_evaluations_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("run_id", "phase", "split", name=op.f("uq_evaluations_run_id_phase_split")),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=True),
        sa.Column("severity", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_events_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_run_id"), "events", ["run_id"])
    op.create_index(op.f("ix_events_study_id_id"), "events", ["study_id", "id"])


def _create_metric_points() -> None:
    op.create_table(
        "metric_points",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", BIG_INTEGER, nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("recorded_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_metric_points_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "name", "step", name=op.f("pk_metric_points")),
        sqlite_with_rowid=False,
    )


def _create_notebook() -> None:
    op.create_table(
        "notebook",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("iteration", BIG_INTEGER, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_notebook_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notebook")),
        sa.UniqueConstraint("study_id", "key", name=op.f("uq_notebook_study_id_key")),
    )
    op.create_index(op.f("ix_notebook_study_id_id"), "notebook", ["study_id", "id"])


def _create_program_trials() -> None:
    op.create_table(
        "program_trials",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=True),
        sa.Column("code_digest", sa.String(length=64), nullable=False),
        sa.Column("attempts", BIG_INTEGER, nullable=False),
        sa.Column("broken", BIG_INTEGER, nullable=False),
        sa.Column("mean", sa.Float(precision=53), nullable=True),
        sa.Column("mean_reward", sa.Float(precision=53), nullable=True),
        sa.Column("calls", sa.Float(precision=53), nullable=True),
        sa.Column("tokens", sa.Float(precision=53), nullable=True),
        sa.Column("seconds", sa.Float(precision=53), nullable=False),
        sa.Column("passed", BIG_INTEGER, nullable=True),
        sa.Column("blank_gain", sa.Float(precision=53), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("transcripts", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_program_trials_experiment_id_experiments")
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_program_trials_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_program_trials")),
    )
    op.create_index(op.f("ix_program_trials_experiment_id"), "program_trials", ["experiment_id"])
    op.create_index(op.f("ix_program_trials_study_id_id"), "program_trials", ["study_id", "id"])


def _create_planner_questions() -> None:
    op.create_table(
        "planner_questions",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("objection", sa.Text(), nullable=True),
        sa.Column("deadline", sa.Float(precision=53), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("answered_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_planner_questions_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_planner_questions")),
    )
    op.create_index(op.f("ix_planner_questions_study_id_id"), "planner_questions", ["study_id", "id"])


def _create_reviews() -> None:
    op.create_table(
        "reviews",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("iteration", BIG_INTEGER, nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("reviewer", sa.Text(), nullable=False),
        sa.Column("objections", sa.JSON(), nullable=False),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("is_withdrawn", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_reviews_experiment_id_experiments")
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_reviews_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reviews")),
        sa.UniqueConstraint(
            "study_id", "iteration", "experiment_id", name=op.f("uq_reviews_study_id_iteration_experiment_id")
        ),
    )
