"""The main job, shown: a year of flights, two drivers, two faults, and the proof at the end.

``show`` leads it and sends the flights, ``driver`` is what each driver runs, ``drivers`` starts,
stops and kills them, ``screen`` shows what the store says of them, ``delays`` and ``verdict``
compare the table with the flights, and ``running`` says what to look at then.
"""
