"""The skills for coding agents: folders of instructions in the format of agentskills.io, shipped with the package."""

from swarm.skills.folders import InstalledSkill, Skill, State, install_skill, list_skills, read_skill

__all__ = ["InstalledSkill", "Skill", "State", "install_skill", "list_skills", "read_skill"]
