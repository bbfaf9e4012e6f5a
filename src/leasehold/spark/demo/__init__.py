"""The demo: a year of flights, two drivers, two faults, and the proof at the end.

``show`` directs it and sends the flights, ``driver`` is the program of each driver, ``drivers``
starts, stops and kills them, ``screen`` shows what the store knows of them, ``delays`` compares the
table with the flights, and ``running`` runs it all and prints the verdict.
"""
