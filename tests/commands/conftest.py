"""Repositories with a fast training: fresh, locked, calibrated. Each is built once and copied for every test."""

import pytest
import training_case


@pytest.fixture(scope="session")
def user(tmp_path_factory):
    """The user's home."""
    return training_case.make_home(tmp_path_factory.mktemp("user") / "home")


@pytest.fixture
def fresh(user, tmp_path):
    """A training without a contract."""
    training_case.set_machine(user)
    return training_case.make_repository(user, tmp_path / "project")


@pytest.fixture(scope="session")
def _locked(user, tmp_path_factory):
    case = training_case.make_repository(user, tmp_path_factory.mktemp("locked") / "project")
    case.write("infrarsi.toml", case.toml())
    assert case.say("init").code == 0
    case.git("add", "infrarsi.toml", "infrarsi.lock")
    case.git("commit", "-q", "--no-gpg-sign", "-m", "contract")
    return case


@pytest.fixture
def locked(_locked, tmp_path):
    """A training whose contract is committed."""
    training_case.set_machine(_locked.home)
    return training_case.copy_of(_locked, tmp_path / "project")


@pytest.fixture(scope="session")
def _calibrated(_locked, tmp_path_factory):
    case = training_case.copy_of(_locked, tmp_path_factory.mktemp("calibrated") / "project")
    assert case.say("doctor", "--repeats", "3").code == 0
    return case


@pytest.fixture
def calibrated(_calibrated, tmp_path):
    """A training whose contract is committed, on a machine that is calibrated for it."""
    training_case.set_machine(_calibrated.home)
    return training_case.copy_of(_calibrated, tmp_path / "project")
