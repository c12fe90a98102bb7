"""Search of settings: `dragoman tune`.

space.py     the settings that are tried, checked against the configuration of a training
study.py     trials, their record in study.json, and the choice of the next one by Optuna
command.py   the command
"""
