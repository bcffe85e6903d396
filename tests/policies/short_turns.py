"""Policies that preempt, with turns far shorter than the jobs of tests."""

TURNS = {
    "las": {"quantum": "10"},
    "time-slice": {"quantum": "10"},
    "tiresias": {"thresholds": "10,20,40,80", "promote-knob": "1"},
    "themis": {"lease": "10"},
    "max-min": {"round": "10", "stay": "0"},
    "finish-time": {"round": "10", "stay": "0"},
}
