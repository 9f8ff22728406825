"""Checkov's policies that fit what is built here; its others are of App Service, of passwords or of other plans.

It passes over files that it cannot read and ends well, so both are asserted: nothing unread, and each policy
found something to judge.
"""

import logging
import os

logging.disable(logging.ERROR)

import checkov.arm.runner  # noqa: E402,F401  (registers the policies that Bicep shares)
import checkov.arm.checks.resource  # noqa: E402,F401
from checkov.bicep.runner import Runner  # noqa: E402
from checkov.runner_filter import RunnerFilter  # noqa: E402

POLICIES = {
    "CKV_AZURE_3": "storage takes https only",
    "CKV_AZURE_15": "the site's TLS is 1.2 or newer",
    "CKV_AZURE_34": "containers are private",
    "CKV_AZURE_44": "storage's TLS is 1.2 or newer",
    "CKV_AZURE_52": "the SQL server's TLS is 1.2 or newer",
    "CKV_AZURE_70": "the function app takes https only",
    "CKV_AZURE_71": "the app has a managed identity",
    "CKV_AZURE_78": "no deployment by FTP",
    "CKV2_AZURE_27": "the SQL server has no login of its own",
}


def judge(folder):
    """Returns what is wrong with the templates below `folder`, and how many judgements passed."""
    report = Runner().run(root_folder=folder, runner_filter=RunnerFilter(framework=["bicep"], checks=list(POLICIES)))
    errors = [f"{os.path.relpath(path, folder)}: checkov cannot read it" for path in report.parsing_errors]
    errors += [
        f"{check.file_path.lstrip('/')}: {check.resource}: {check.check_id}: not so: {POLICIES[check.check_id]}"
        for check in report.failed_checks
    ]
    judged = {check.check_id for check in report.passed_checks + report.failed_checks}
    errors += [f"{policy} judged nothing: {POLICIES[policy]}" for policy in POLICIES if policy not in judged]
    return errors, len(report.passed_checks)
