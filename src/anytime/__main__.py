from anytime.cli import main

main()
