"""The checkpoint storage in memory keeps the contract of every checkpoint storage."""

from __future__ import annotations

import pytest

from tests.contracts.blobs import BlobStoreContract
from tidegate.drivers.memory.blob_store import MemoryBlobStore
from tidegate.ports.blobs import BlobStore


class TestContract(BlobStoreContract):
    @pytest.fixture
    def store(self) -> BlobStore:
        return MemoryBlobStore()
