"""The skills for coding agents: folders of instructions in the format of agentskills.io, shipped with the package."""

from swarm.skills.folders import Skill, list_skills, read_skill
from swarm.skills.installation import InstalledSkill, State, install_skill

__all__ = ["InstalledSkill", "Skill", "State", "install_skill", "list_skills", "read_skill"]
