"""The Azure Blob store: real blob leases, and one book for each group.

How it works, in words:

* Each **holder** has a blob of its own with a real blob lease, whose id follows from the holder's
  token. A renewal is the service's own *renew*, one for each host and cycle, whatever it owns.
* Each **group** has one **book**, a blob of JSON: its keys with their epochs, terms and what is
  under way, its members, its checkpoints. Every change is one write under the condition that
  nobody has written since (``If-Match``); who comes second reads again and takes the step again.
  The steps are those of the memory store, word for word.
* A holder that writes **positions** often has a *slip* beside the book: a blob with the positions
  of its keys as metadata, named by the book. A checkpoint is one cheap write there, in nobody's
  way. Who takes a key from it seals the slip first, and takes what is on it into the book
  (``checkpoint_blobs``).
* The service's timer alone says **who is alive**: one listing of a group tells the lease of every
  member, and whether the book has changed. Members share the looking (``blob_leases``); who does
  not look asks for the book alone. So a quiet cycle is two calls.
* **Nobody is ended by a guess.** Before a book says that a lease has ended, the blob of that lease
  is removed without showing a lease id: the service does that only while no lease runs on it. A
  renewal that comes late finds nothing to renew. The end is final when the book says so.
* **Old terms** leave the book for a blob of their key, before the book is written without them.
* **Time** is the service's ``Date``, in whole seconds: what is to happen not before a moment may
  come up to two seconds late, and never early. The time of a break counts from when the service
  wrote it (``Last-Modified``), however long who ordered it was paused before.
* **Outsiders** (holders without a group, or of another one) are noted in the book whose key they
  own, and in their own that they have gone there.

Secrets are never shown and tokens never stored, only digests of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.store import AzureBlobStore

if TYPE_CHECKING:
    from leasehold.clock import Clock

__all__ = ["AzureBlobStore", "open_url"]


async def open_url(url: str, clock: Clock) -> AzureBlobStore:
    """Open the store that the URL names; ``address`` says how they are written.

    Raises:
        InvalidUrl: the URL can not be used, or there is no right.
        StoreUnavailable: there is no answer.
        StoreUnusable: the service refuses us.
    """
    return await AzureBlobStore.open(BlobAddress.of(url, os.environ), clock=clock)
