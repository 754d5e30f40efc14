"""Files as earlier versions wrote them. They stay readable for ever."""
