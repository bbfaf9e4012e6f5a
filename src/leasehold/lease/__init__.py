"""The client of a store: a lease, the keys under it, and a fair share of a group.

===============  ==================================================================
module           holds
===============  ==================================================================
``member``       ``Member``: joins a group, holds a fair share of its keys, leaves
``cycle``        one cycle of a member: renew, plan, act; and the keys that it holds
``handle``       ``Handle``: an ownership as the work sees it, and whether it is still valid
``group_state``  the group as a member knows it by its renewals
``options``      ``MemberOptions``
===============  ==================================================================
"""
