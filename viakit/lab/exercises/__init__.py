"""The exercises of the lessons: answers, checks, hints and solutions, one module for each lesson.

Each module has a tuple EXERCISES of :class:`viakit.lab.tutor.Exercise`. A check uses counters, which are exact, or
ratios within one run, never a time. It raises :class:`viakit.lab.tutor.Wrong` with the reason if the answer is wrong.
"""
