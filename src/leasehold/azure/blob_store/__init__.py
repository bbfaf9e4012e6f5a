"""The Azure Blob store: real blob leases, and one JSON document for each group.

* Each **holder** has its own blob with a real blob lease. The lease id follows from the holder's
  token. A renewal is the service's own *renew*: one for each host and cycle, whatever it owns.
* Each **group** has one **group document**, a blob of JSON. It has the keys with their epochs and
  terms, the members and the checkpoints. Every change is one conditional write (``If-Match``). The
  second of two writers reads the document again and repeats its step. The steps are those of the
  memory store.
* A holder that writes **checkpoints** often has a *checkpoint blob*, which the document names. The
  positions of its keys are the metadata of that blob, so a checkpoint is one cheap write. Before
  another process takes one of the keys, it seals the blob and merges the positions into the
  document (``checkpoint_blobs``).
* The service's timer alone decides **who is alive**. One listing of a group shows the lease of
  every member and whether the document has changed. Members take turns to list (``blob_leases``);
  the others poll the document alone. So a quiet cycle is two requests.
* **No lease is ended by a guess.** Before a document says that a lease has ended, the blob of that
  lease is deleted without a lease id: the service does that only while no lease runs on it. A late
  renewal finds nothing to renew, so the end is final.
* **Old terms** move to a history blob of their key, before the document is written without them.
* **Time** is the service's ``Date``, in whole seconds. What is due at some time may come up to two
  seconds late, and never early. The time of a break counts from when the service wrote it
  (``Last-Modified``), however long the process that ordered it was paused before.
* **Outsiders** are holders without a group or of another group. The document whose key they own
  lists them, and their own document lists that group.

Secrets are never shown. Tokens are never stored, only digests of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.store import AzureBlobStore

if TYPE_CHECKING:
    from leasehold.clock import Clock

__all__ = ["AzureBlobStore", "open_url"]


async def open_url(url: str, clock: Clock, *, create: bool = True) -> AzureBlobStore:
    """Open the store that the URL names; ``address`` describes the URLs.

    Without ``create`` a container that does not exist is not created.

    Raises:
        InvalidUrl: the URL cannot be used, or there is no credential.
        StoreUnavailable: the service does not answer.
        StoreUnusable: the service refuses access.
    """
    return await AzureBlobStore.open(BlobAddress.of(url, os.environ), clock=clock, create=create)
