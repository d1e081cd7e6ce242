"""The Universal Declaration of Human Rights, articles 1 and 3 to 5 in several languages."""

ARTICLES = {
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft "
    "und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen. Jeder hat das "
    "Recht auf Leben, Freiheit und Sicherheit der Person. Niemand darf in Sklaverei oder "
    "Leibeigenschaft gehalten werden. Niemand darf der Folter unterworfen werden.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués "
    "de raison et de conscience et doivent agir les uns envers les autres dans un esprit de "
    "fraternité. Tout individu a droit à la vie, à la liberté et à la sûreté de sa personne. Nul "
    "ne sera tenu en esclavage ni en servitude. Nul ne sera soumis à la torture.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como "
    "están de razón y conciencia, deben comportarse fraternalmente los unos con los otros. Todo "
    "individuo tiene derecho a la vida, a la libertad y a la seguridad de su persona. Nadie estará "
    "sometido a esclavitud ni a servidumbre. Nadie será sometido a torturas.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati "
    "di ragione e di coscienza e devono agire gli uni verso gli altri in spirito di fratellanza. "
    "Ogni individuo ha diritto alla vita, alla libertà ed alla sicurezza della propria persona. "
    "Nessun individuo potrà essere tenuto in stato di schiavitù o di servitù.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de "
    "razão e de consciência, devem agir uns para com os outros em espírito de fraternidade. Todo "
    "o indivíduo tem direito à vida, à liberdade e à segurança pessoal. Ninguém será mantido em "
    "escravatura ou em servidão. Ninguém será submetido a tortura.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd "
    "met verstand en geweten, en behoren zich jegens elkander in een geest van broederschap te "
    "gedragen. Een ieder heeft het recht op leven, vrijheid en onschendbaarheid van zijn persoon. "
    "Niemand zal in slavernij of horigheid gehouden worden.",
    "sv": "Alla människor är födda fria och lika i värde och rättigheter. De är utrustade med "
    "förnuft och samvete och bör handla gentemot varandra i en anda av broderskap. Var och en har "
    "rätt till liv, frihet och personlig säkerhet. Ingen får hållas i slaveri eller träldom. Ingen "
    "får utsättas för tortyr.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni "
    "obdarzeni rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa. Każdy "
    "człowiek ma prawo do życia, wolności i bezpieczeństwa swej osoby. Nie wolno nikogo czynić "
    "niewolnikiem ani nakładać na nikogo służebności.",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan. Heille on "
    "annettu järki ja omatunto, ja heidän on toimittava toisiaan kohtaan veljeyden hengessä. "
    "Kullakin yksilöllä on oikeus elämään, vapauteen ja henkilökohtaiseen turvallisuuteen. Ketään "
    "ei saa pitää orjana tai orjuutettuna. Ketään ei saa kiduttaa.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana "
    "sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler. Yaşamak, "
    "hürriyet ve kişi emniyeti her ferdin hakkıdır. Hiç kimse kölelik veya kulluk altında "
    "bulundurulamaz. Hiç kimse işkenceye tabi tutulamaz.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены "
    "разумом и совестью и должны поступать в отношении друг друга в духе братства. Каждый человек "
    "имеет право на жизнь, на свободу и на личную неприкосновенность. Никто не должен содержаться "
    "в рабстве или в подневольном состоянии.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. "
    "Είναι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με "
    "πνεύμα αδελφοσύνης. Κάθε άτομο έχει δικαίωμα στη ζωή, την ελευθερία και την προσωπική του "
    "ασφάλεια. Κανείς δεν επιτρέπεται να ζει υπό καθεστώς δουλείας.",
    "ar": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميراً وعليهم أن "
    "يعامل بعضهم بعضاً بروح الإخاء. لكل فرد الحق في الحياة والحرية وسلامة شخصه. لا يجوز استرقاق "
    "أو استعباد أي شخص، ويحظر الاسترقاق وتجارة الرقيق بكافة أوضاعهما. لا يعرض أي إنسان للتعذيب.",
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。"
    "人人有权享有生命、自由和人身安全。任何人不得使为奴隶或奴役;一切形式的奴隶制度和奴隶买卖,"
    "均应予以禁止。任何人不得加以酷刑,或施以残忍的、不人道的或侮辱性的待遇或刑罚。",
    "ja": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。"
    "人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。"
    "すべて人は、生命、自由及び身体の安全に対する権利を有する。何人も、奴隷にされ、又は苦役に"
    "服することはない。",
}
