"""Every file under config/ is checked by a test: which one, stands here."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import test_config
import test_deployment as deployment
import test_examples
import test_fronts
import test_packaging as packaging
import test_prometheus as scraped
import test_replay_explain
import test_walkthrough

CONFIG = Path(__file__).parent.parent / "config"

CHECKED: dict[str, Callable[..., Any]] = {
    "codes.md": test_replay_explain.test_the_page_of_all_codes_is_up_to_date,
    "compose-demo.yaml": test_walkthrough.test_the_overlay_follows_the_specification_and_the_readme_names_it,
    "container.toml": packaging.test_the_shipped_configurations_are_good,
    "demo.toml": test_walkthrough.test_the_overlay_mounts_its_configuration_where_the_image_reads_it,
    "wholecall.toml": test_config.test_the_shown_file_has_every_key_with_its_true_default,
    "examples/README.md": test_examples.test_the_index_has_every_example_with_its_dialect_and_whether_it_was_run,
    "examples/backends/*.toml": test_examples.test_an_example_is_a_good_configuration,
    "examples/clients/*.toml": test_examples.test_an_example_is_a_good_configuration,
    "grafana/dashboards/wholecall.json": scraped.test_prometheus_counts_calls_fires_its_alerts_and_fills_every_panel,
    "grafana/provisioning/*/*.yaml": packaging.test_grafana_is_provisioned_with_the_source_and_the_dashboard_that_exist,
    "kubernetes/gateway/kustomization.yaml": deployment.test_kustomize_takes_every_object_but_the_secret,
    "kubernetes/gateway/prometheus-adapter.yaml": deployment.test_the_autoscaler_asks_for_a_metric_that_there_is,
    "kubernetes/gateway/wholecall.toml": deployment.test_the_pods_configuration_is_good_and_has_its_ports,
    "kubernetes/*.yaml": deployment.test_every_object_follows_its_schema,
    "envoy.yaml": test_fronts.test_the_front_accepts_its_configuration,
    "nginx.conf": test_fronts.test_the_front_accepts_its_configuration,
    "prometheus-alerts.yml": packaging.test_each_alert_fires_where_it_should_and_is_silent_where_it_should_not,
    "prometheus.yml": packaging.test_promtool_accepts_the_scrape_configuration_with_its_alerts,
    "requirements-otel.lock": packaging.test_the_lock_with_traces_has_the_same_pins_and_more_and_the_image_takes_either,
    "wholecall.service": deployment.test_systemd_accepts_the_unit,
}


def test_no_file_is_unchecked_and_nothing_is_said_to_be_checked_that_is_gone() -> None:
    files = [str(path.relative_to(CONFIG)) for path in CONFIG.rglob("*") if path.is_file()]
    assert [file for file in files if not any(fnmatchcase(file, pattern) for pattern in CHECKED)] == []
    assert [pattern for pattern in CHECKED if not any(fnmatchcase(file, pattern) for file in files)] == []
