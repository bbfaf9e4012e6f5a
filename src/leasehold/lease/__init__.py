"""The client of a store: a lease, the keys under it, and a fair share of a group.

===============  ==================================================================
module           holds
===============  ==================================================================
``member``       ``Member``: joins a group, holds a fair share of its keys, leaves
``cycle``        one cycle of a member: renew, plan, act
``holdings``     what a member believes it owns, and the order in which belief ends
``handle``       what work is given: whether its ownership may still be acted upon
``group_state``  what renewals have told of the group
``options``      ``MemberOptions``
===============  ==================================================================
"""
