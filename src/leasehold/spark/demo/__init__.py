"""The main job, shown: a year of flights, two drivers, two faults, and the proof at the end.

``show`` leads it, ``flights`` and ``sending`` are the data, ``driver`` is what each driver runs,
``drivers`` and ``processes`` start, stop and kill them, ``looks`` and ``story`` are what the store
says of them, ``screen`` shows it, ``delays`` and ``verdict`` compare the table with the flights.
``further`` says what to look at then.
"""
