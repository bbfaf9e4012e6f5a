"""Members that share a group: the loop that keeps a lease, a share of the keys, and the peace.

::

    ┌─> renew ──> take in what changed ──> plan ──> act ──> wait ─┐
    └─────────────────────────────────────────────────────────────┘

*Renew* is one call, whatever is owned; in a quiet group it is the only one. Its answer is the
only way a member learns anything: what it lost, what it is asked for, who came and who went.
*Plan* is a pure function of what it knows. *Act* claims what is free and hands over what is too
much; a step whose answer is lost is not repeated blindly: the next renewal tells how it went.

What a member believes is kept by ``Holdings``, and rests on three rules:

1. It believes in a key only after the store agreed, and only while its trust window lasts.
2. It stops believing *before* it sends a release or a hand-over, and never takes the same epoch
   up again after that, whatever becomes of the message.
3. When the trust window ends without an answer, everything is closed at once, and the member
   comes back as a new holder with a new lease.
"""
