"""Episodes: functions of several turns, whose effects are recorded, so that a killed run goes on without asking again."""
