"""What a run of the tests showed, from the JUnit file that cargo-nextest writes.

    test_report.py JUNIT FLAKY DURATIONS

Prints the tests that failed with the command that repeats each, those that passed at the second time only, and the 20 slowest.
Writes the names of the flaky ones to FLAKY, and every test with its seconds, slowest first, to DURATIONS.
"""

import sys
import xml.etree.ElementTree as xml

SLOWEST = 20


def main():
    junit, flaky_file, durations_file = sys.argv[1:]
    durations, failed, flaky = [], [], []
    for suite in xml.parse(junit).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            binary, name, seconds = suite.get("name"), case.get("name"), float(case.get("time", 0))
            durations.append((seconds, f"{binary} {name}"))
            failure = case.find("failure")
            if failure is None:
                failure = case.find("error")
            if failure is not None:
                failed.append((binary, name, seconds, failure.get("type") or "failed"))
            elif case.find("flakyFailure") is not None:
                flaky.append(f"{binary} {name}")
    durations.sort(reverse=True)
    with open(flaky_file, "w") as file:
        file.writelines(f"{test}\n" for test in flaky)
    with open(durations_file, "w") as file:
        file.writelines(f"{seconds:.2f} {test}\n" for seconds, test in durations)

    print(f"\n{len(durations)} tests, {sum(seconds for seconds, _ in durations):.0f} s in sum; the slowest:")
    for seconds, test in durations[:SLOWEST]:
        print(f"{seconds:8.1f} s  {test}")
    for test in flaky:
        print(f"flaky: {test}")
    for binary, name, seconds, how in failed:
        print(f"failed: {binary} {name}: {how}, after {seconds:.1f} s")
        print(f"  again: bash tests/nextest.sh -E 'binary_id(={binary}) & test(={name})'")


main()
